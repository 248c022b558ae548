"""The output of `fedraa --help` and `fedraa COMMAND --help`."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedraa.cli.console import page_console
from fedraa.cli.flags import OWN, POSITIONAL, Flag, list_flags

HELP_ALL = "--help-all"
HELP_FLAGS = frozenset(["-h", "--help", HELP_ALL])
# If an option has more characters than this, its help text is on the next line.
NARROW = 23
# Under each heading, the most used options of an experiment. Only `--help-all` shows the other options.
EVERYDAY = {
    "Method": ("--method", "--scheduler", "--fragments", "--participation"),
    "Model and data": ("--model", "--dataset", "--data-dir"),
    "Clients and devices": ("--clients", "--partition", "--compute"),
    "Local training": ("--lr", "--momentum", "--batch-size", "--local-epochs", "--local-steps"),
    "Length and target": ("--updates", "--rounds", "--time", "--target-accuracy"),
    "Engine, seed and output": ("--engine", "--workers", "--seed", "--out"),
}
FURTHER = "Further options"
Group = tuple[str, list[Flag]]


def show_overview(description: str, groups: Mapping[str, Mapping[str, Callable[..., Any]]]) -> None:
    """Print the commands of the program, one per line, below their headings."""
    console = page_console()
    console.print("usage: [bold]fedraa COMMAND[/bold] \\[options]\n")
    console.print(description)
    for heading, commands in groups.items():
        console.print(f"\n[bold cyan]{heading}[/bold cyan]")
        for name, command in commands.items():
            console.print(f"  [bold]{name:<9}[/bold] {escape(purpose_of(command))}", overflow="ellipsis", no_wrap=True)
    console.print("\n`fedraa COMMAND --help` shows the options of a command; `fedraa --version` shows the version.")


def purpose_of(command: Callable[..., Any]) -> str:
    """Return the docstring of a command on one line."""
    return " ".join(str(command.__doc__).split())


def show_help(name: str, command: Callable[..., Any], *, all_options: bool) -> None:
    """Print the purpose of a command and its options.

    Args:
        name: The name of the command.
        command: The command.
        all_options: False to print only the everyday options of an experiment.
    """
    console = page_console()
    flags = list_flags(command)
    console.print(f"usage: [bold]{escape(usage_of(name, flags))}[/bold]\n")
    console.print(escape(purpose_of(command)))
    _print_groups(console, everyday_groups(name, flags))
    further = further_groups(flags)
    if further and all_options:
        console.print(f"\n[bold]{FURTHER}[/bold]")
        _print_groups(console, further)
    elif further:
        console.print(f"\n`fedraa {name} {HELP_ALL}` lists all options.")


def usage_of(name: str, flags: Sequence[Flag]) -> str:
    """Return the usage of a command, such as `fedraa status [RUNS] [options]`. Brackets mark optional words."""
    words = ["fedraa", name]
    for flag in flags:
        if flag.group == POSITIONAL:
            is_optional = flag.default or "(default: " in flag.text
            words.append(f"[{flag.name}]" if is_optional else flag.name)
    if any(flag.group != POSITIONAL for flag in flags):
        words.append("[options]")
    return " ".join(words)


def everyday_groups(name: str, flags: Sequence[Flag]) -> list[Group]:
    """Return the groups in `--help`: positional arguments, everyday options, the command's options."""
    groups = [(POSITIONAL, [flag for flag in flags if flag.group == POSITIONAL])]
    by_option = {flag.option: flag for flag in flags if flag.sets_experiment_field}
    if by_option:
        for heading, options in EVERYDAY.items():
            groups.append((heading, [by_option[option] for option in options if option in by_option]))
    groups.append((f"Options of fedraa {name}", [flag for flag in flags if flag.group == OWN]))
    return [(heading, members) for heading, members in groups if members]


def further_groups(flags: Sequence[Flag]) -> list[Group]:
    """Return, by section, the experiment's options that only `--help-all` shows."""
    everyday = set(chain.from_iterable(EVERYDAY.values()))
    further = [flag for flag in flags if flag.sets_experiment_field and flag.option not in everyday]
    return [(heading, list(members)) for heading, members in groupby(further, key=lambda flag: flag.group)]


def _print_groups(console: Console, groups: Sequence[Group]) -> None:
    for heading, members in groups:
        console.print(f"\n[bold cyan]{heading}[/bold cyan]")
        for flag in members:
            _print_flag(console, flag)


def _print_flag(console: Console, flag: Flag) -> None:
    """Print a flag and its help text. If the flag is long, the help text is on the next line."""
    name = f"[bold]{escape(flag.name)}[/bold] {escape(flag.takes)}"
    text = escape(flag.text)
    if flag.default:
        text = f"{text.removesuffix('.')} [cyan](default: {escape(flag.default)})[/cyan]."
    if len(flag.typed) > NARROW:
        console.print(Padding(name, (0, 0, 0, 2)), soft_wrap=True)
        name = ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=NARROW, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(name, text)
    console.print(Padding(grid, (0, 0, 0, 2)))
