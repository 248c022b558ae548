"""MkDocs hooks: pages made from the code, notebooks that are run, and tables that narrow screens can show."""

import sys
from pathlib import Path
from xml.etree.ElementTree import Element

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from command_line import command_line
from example_page import example_page
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from method_cards import method_cards
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import page as notebook
from papers import paper_page

WIDE = ("research/claims.md",)  # pages that are a table, which take the whole width
MADE = {
    "methods.md": method_cards,
    "papers.md": paper_page,
    "examples.md": example_page,
    "reference/command-line.md": command_line,
}
ROOT = Path(__file__).parents[2]
COPIED = {"assets/compare.png": ROOT / "benchmarks" / "results" / "compare.png"}


class CellLabels(Treeprocessor):
    """Give each table cell the name of its column, which narrow screens show beside it."""

    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            names = ["".join(cell.itertext()) for cell in table.iter("th")]
            for row in table.iter("tr"):
                for name, cell in zip(names, row.findall("td"), strict=False):
                    cell.set("data-label", name)


class CellLabelsExtension(Extension):
    """Runs CellLabels after the inline text of cells has been parsed."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  # the name that Markdown calls
        md.treeprocessors.register(CellLabels(md), "cell-labels", 5)


def on_config(config: MkDocsConfig) -> None:
    """Add the extension that labels the cells of tables."""
    config.markdown_extensions.append(CellLabelsExtension())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and replace notebooks by pages with their output."""
    for uri, made in MADE.items():
        files.append(File.generated(config, uri, content=made()))
    for uri, path in COPIED.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        uri = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, uri, content=notebook(Path(str(file.abs_src_path)))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Hide the side bars of pages that are one wide table."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
