"""What MkDocs is told besides mkdocs.yml: pages that are made from the code, and notebooks that are run."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from command_line import command_line
from example_page import example_page
from method_cards import method_cards
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import page as notebook

WIDE = ("claims.md",)  # pages that are a table, which take the whole width
MADE = {"methods.md": method_cards, "examples.md": example_page, "reference/command-line.md": command_line}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Notebooks become pages with what they showed; the table of methods and the flags become pages, too."""
    for uri, made in MADE.items():
        files.append(File.generated(config, uri, content=made()))
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        files.remove(file)
        uri = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, uri, content=notebook(Path(str(file.abs_src_path)))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """A page that is one wide table has nothing beside it."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
