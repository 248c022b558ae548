"""Run a notebook and return a page with the output below each cell."""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

# The time limit of one cell, on a machine with much other work.
CELL_TIMEOUT_S = 600
ROOT = Path(__file__).parents[2]
# Blank lines would end a block of HTML.
BLANK = re.compile(r"\n\s*\n")
# A table of pandas. Without its class it looks like the other tables.
FRAME = re.compile(r'<table border="1" class="dataframe">')
ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def page(path: Path) -> str:
    """Return the notebook as Markdown. Raises nbclient's CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": folder}})
        # Without this option each kernel warns that it listens on loopback.
        client.extra_arguments = ["--log-level=ERROR"]
        client.execute(env=environment)
    return "\n\n".join(_cell(cell) for cell in notebook.cells) + "\n"


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    shown = [text for output in cell.outputs if (text := _output(output))]
    return "\n\n".join([f"```python\n{cell.source}\n```", *shown])


def _output(output: Any) -> str:
    """Return the output of a cell: HTML or a picture if there is one, otherwise text. Progress bars are omitted."""
    if output.output_type == "stream":
        return _text(output.text) if output.name == "stdout" else ""
    data = output.get("data", {})
    if "<progress" in data.get("text/html", ""):
        return ""
    if "text/html" in data:
        return f'<div class="shown">{BLANK.sub(chr(10), FRAME.sub("<table>", data["text/html"]))}</div>'
    if "image/png" in data:
        return f'<img alt="output of the cell" src="data:image/png;base64,{data["image/png"].strip()}">'
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    return f"```text\n{ESCAPES.sub('', text).rstrip()}\n```"
