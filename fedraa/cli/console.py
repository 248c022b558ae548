"""The console of pages of text: it has the width of the terminal, or a fixed width in a pipe."""

import os

from rich.console import Console

# Characters of a line in a pipe or a file.
PIPE_WIDTH = 100


def page_console() -> Console:
    """Return a console for a page of text. Without a terminal a line has at most `PIPE_WIDTH` characters."""
    console = Console(highlight=False)
    if not console.is_terminal and ("COLUMNS" not in os.environ or console.width > PIPE_WIDTH):
        console.width = PIPE_WIDTH
    return console
