"""The help of a command: flags in groups, each with its values, default and text."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedraa.cli.flags import POSITIONAL, Flag, flags_of

# Characters of the longest flag whose text is on the same line.
NARROW = 30


def show_help(name: str, command: Callable[..., Any]) -> None:
    """Print the purpose of the command and its flags."""
    console = Console(highlight=False)
    flags = flags_of(command)
    positional = [f" {flag.name}" for flag in flags if flag.group == POSITIONAL]
    console.print(f"usage: [bold]fedraa {name}{''.join(positional)} [/bold]\\[flags]\n")
    console.print(escape(" ".join(str(command.__doc__).split())))
    if any(flag.name == "--method" for flag in flags):
        console.print("Where no default is said, the method's own value holds, or none.")
    for group, members in groupby(flags, key=lambda flag: flag.group):
        console.print(f"\n[bold cyan]{group}[/bold cyan]")
        for flag in members:
            _show(console, flag)


def _show(console: Console, flag: Flag) -> None:
    """Print a flag with its text beside it, or below it if the flag is long."""
    default = f" [cyan](default: {escape(flag.default)})[/cyan]" if flag.default else ""
    name, text = f"[bold]{escape(flag.name)}[/bold] {escape(flag.takes)}", escape(flag.text) + default
    if len(flag.typed) > NARROW:
        console.print(Padding(name, (0, 0, 0, 2)), soft_wrap=True)
        name = ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=NARROW, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(name, text)
    console.print(Padding(grid, (0, 0, 0, 2)))
