"""MkDocs hooks: pages generated from the code, pages of executed notebooks, and tables for narrow screens."""

import sys
from pathlib import Path
from xml.etree.ElementTree import Element

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from command_line import command_line
from compatibility import compatibility_page
from example_page import example_page
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from method_cards import method_cards
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import page as notebook
from papers import paper_page

from benchmarks.studies.paper_pages import load_papers

# Pages that are one wide table. They have no side bars.
WIDE_PAGES = tuple(f"papers/{paper.file_name}.md" for paper in load_papers())
GENERATED = {
    "methods.md": method_cards,
    "papers.md": paper_page,
    "examples.md": example_page,
    "reference/command-line.md": command_line,
    "reference/compatibility.md": compatibility_page,
}
ROOT = Path(__file__).parents[2]
COPIED = {"assets/compare.png": ROOT / "benchmarks" / "results" / "compare.png"}


class CellLabels(Treeprocessor):
    """The step that adds the name of its column to each table cell. Narrow screens show it beside the cell."""

    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            names = ["".join(cell.itertext()) for cell in table.iter("th")]
            for row in table.iter("tr"):
                for name, cell in zip(names, row.findall("td"), strict=False):
                    cell.set("data-label", name)


class CellLabelsExtension(Extension):
    """The extension that runs CellLabels after Markdown has parsed the text of the cells."""

    # Markdown calls the method by this name.
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register CellLabels."""
        md.treeprocessors.register(CellLabels(md), "cell-labels", 5)


def on_config(config: MkDocsConfig) -> None:
    """Add the extension that labels the cells of tables."""
    config.markdown_extensions.append(CellLabelsExtension())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from the code, and replace each notebook by a page with its output."""
    for uri, generate in GENERATED.items():
        files.append(File.generated(config, uri, content=generate()))
    for uri, path in COPIED.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        uri = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, uri, content=notebook(Path(str(file.abs_src_path)))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Hide the side bars of pages that are one wide table."""
    if page.file.src_uri in WIDE_PAGES:
        page.meta["hide"] = ["navigation", "toc"]
