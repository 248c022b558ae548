"""`fedraa run --help` and its like: flags in groups, each with what it takes, its default and its text."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedraa.cli.flags import POSITIONAL, Flag, flags_of

NARROW = 30  # characters of the longest flag that has its text beside it


def show_help(name: str, command: Callable[..., Any]) -> None:
    """Prints what the command does, and its flags."""
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
    """The flag with its text beside it, or below where it is long."""
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
