"""A notebook as a page: it is run, and what it showed stands below each of its cells."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

SECONDS = 600  # for one cell, on a crowded machine
ROOT = Path(__file__).parents[2]
BLANK = re.compile(r"\n\s*\n")  # which would end a block of HTML
FRAME = re.compile(r'<table border="1" class="dataframe">')  # of pandas; without a class it looks as all tables do
ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def page(path: Path) -> str:
    """The notebook as Markdown; nbclient's CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        client.extra_arguments = ["--log-level=ERROR"]  # or each kernel warns that it listens on loopback
        client.execute(env=environment)
    return "\n\n".join(_cell(cell) for cell in notebook.cells) + "\n"


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    shown = [text for output in cell.outputs if (text := _output(output))]
    return "\n\n".join([f"```python\n{cell.source}\n```", *shown])


def _output(output: Any) -> str:
    """What a cell showed: as HTML or a picture where there is one, else as text. A progress bar is left out."""
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else ""
    data = output.get("data", {})
    if "<progress" in data.get("text/html", ""):
        return ""
    if "text/html" in data:
        return f'<div class="shown">{BLANK.sub(chr(10), FRAME.sub("<table>", data["text/html"]))}</div>'
    if "image/png" in data:
        return f'<img alt="what the cell shows" src="data:image/png;base64,{data["image/png"].strip()}">'
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    return f"```text\n{ESCAPES.sub('', text).rstrip()}\n```"
