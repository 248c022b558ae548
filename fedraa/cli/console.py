"""Print lines, tables and pages of text for the user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# Maximum number of characters of a line if the output is a pipe or a file.
PIPE_WIDTH = 100
# More characters than any table has in a line.
WIDEST = 10_000


def _new_console(**options: Any) -> Console:
    """Return a console that prints a value such as `steps:100:0.1` without an emoji in place of `:100:`."""
    return Console(emoji=False, **options)


@contextmanager
def printing_results(subject: str, path: Path) -> Iterator[None]:
    """Add to an error of the standard output that the results are complete, for example on a full disk.

    Args:
        subject: The thing that is complete, such as `the run`.
        path: The path of the results.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
            error.add_note(f"{subject} is complete: {path}")
        raise


def page_console() -> Console:
    """Return a console for a page of text. Without a terminal, lines have at most `PIPE_WIDTH` characters."""
    console = _new_console(highlight=False)
    if not console.is_terminal and ("COLUMNS" not in os.environ or console.width > PIPE_WIDTH):
        console.width = PIPE_WIDTH
    return console


def print_line(text: str) -> None:
    """Print one line for the user."""
    _new_console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table without cutting off any text of its cells.

    If the table is too wide even with line breaks, each row is printed as a block of lines. The console sets the width.
    Without a console, the width is that of the terminal, or unlimited if there is no terminal.
    """
    is_flexible = console is None
    # A title can have brackets, for example from the name of a folder with data.
    table.title = escape(str(table.title or ""))
    console = console or _new_console()
    for column in table.columns:
        column.overflow = "fold"
    # The names in the first column must stay on one line.
    table.columns[0].no_wrap = True
    wanted = console.measure(table, options=console.options.update(width=WIDEST))
    if is_flexible and not console.is_terminal:
        console = _new_console(width=max(console.width, wanted.maximum))
    # With less space between the columns, fewer cells need line breaks.
    if wanted.maximum > console.width:
        table.padding = (0, 1, 0, 0)
        wanted = console.measure(table, options=console.options.update(width=WIDEST))
    if wanted.minimum > console.width:
        table = _stack_rows(table)
    console.print(table)


def _stack_rows(table: Table) -> Table:
    """Return a narrow form of the table: a block per row, with a line `header  value` per cell."""
    stacked = Table(title=table.title, caption=table.caption, show_header=False, box=box.SIMPLE_HEAD)
    stacked.add_column(no_wrap=True)
    stacked.add_column(overflow="fold")
    columns = [list(map(str, column.cells)) for column in table.columns]
    names = [str(column.header) for column in table.columns[1:]]
    for heading, *values in zip(*columns, strict=True):
        stacked.add_row(f"[bold]{table.columns[0].header}[/bold]", f"[bold]{heading}[/bold]")
        for name, value in zip(names, values, strict=True):
            if value:
                stacked.add_row(name, value)
        stacked.add_section()
    return stacked
