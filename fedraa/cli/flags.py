"""The flags of every command, read from the command's class.

`--help` and the reference page of the command line are generated from them.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from fedraa.config.experiment import SECTIONS
from fedraa.config.section import Section

# Headings for flags that are not fields of an experiment, and for positional arguments.
OWN = "Options"
POSITIONAL = "Arguments"
_PLAIN = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Flag:
    """A flag or a positional argument of a command.

    Attributes:
        name: The flag as the user types it. A switch also has its negation: `--quiet, --no-quiet`.
        takes: The values that the flag takes, such as `INT`; empty for a switch.
        default: The default value as text; empty if the flag has none or if `text` states it.
        text: The help text, which is one sentence.
        group: The heading in the help.
    """

    name: str
    takes: str
    default: str
    text: str
    group: str

    @property
    def option(self) -> str:
        """The part of `name` before the comma: `--quiet` of `--quiet, --no-quiet`."""
        return self.name.partition(",")[0]

    @property
    def sets_experiment_field(self) -> bool:
        return self.group not in (OWN, POSITIONAL)

    @property
    def typed(self) -> str:
        """The name of the flag and the values that it takes, such as `--seed INT`."""
        return f"{self.name} {self.takes}".strip()


def list_flags(command: Callable[..., Any]) -> list[Flag]:
    """Return a command's positional arguments, then its experiment's flags, then its other flags."""
    assert isinstance(command, type)
    assert is_dataclass(command)
    hints = get_type_hints(command, include_extras=True)
    texts = _read_field_docs(command)
    command_flags = []
    for item in fields(command):
        if item.name == "experiment":
            continue
        hint, annotations = _split_annotated(hints[item.name])
        group = POSITIONAL if tyro.conf.Positional in annotations else OWN
        name = next((mark.name for mark in annotations if getattr(mark, "name", None)), item.name)
        command_flags.append(_make_flag(name, hint, item.default, texts.get(item.name, ""), group))
    experiment: tuple[Flag, ...] = ()
    if "experiment" in hints:
        experiment = _experiment_flags()
    if "methods" in hints:
        # A command with several methods sets the method of each run itself.
        experiment = tuple(flag for flag in experiment if flag.name != "--method")
    positional = [flag for flag in command_flags if flag.group == POSITIONAL]
    return [*positional, *experiment, *(flag for flag in command_flags if flag not in positional)]


@cache
def _experiment_flags() -> tuple[Flag, ...]:
    flags = []
    for section in SECTIONS:
        hints = get_type_hints(section)
        group = section_heading(section)
        for name, field in section.model_fields.items():
            flags.append(_make_flag(name, hints[name], field.default, field.description or "", group))
    return tuple(flags)


def section_heading(section: type[Section]) -> str:
    """Return the heading of a section of options in `--help`: the docstring of the section's class."""
    return (section.__doc__ or "").rstrip(".")


def _make_flag(name: str, hint: Any, default: object, text: str, group: str) -> Flag:
    text = " ".join(text.split())
    if default in (None, (), {}, MISSING):
        default = ""
    if group == POSITIONAL:
        return Flag(name.upper(), "", _default_text(default), text, group)
    option = name.replace("_", "-")
    if hint is bool:
        return Flag(f"--{option}, --no-{option}", "", "yes" if default else "no", text, group)
    return Flag(f"--{option}", _describe_values(hint), _default_text(default), text, group)


def _describe_values(hint: Any) -> str:
    """Return the values that a flag of this type takes, on one line."""
    hint = _split_annotated(hint)[0]
    types = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"{_describe_values(types[0])} ..."
    if types == [bool]:
        return "True|False"
    if types:
        return "|".join(dict.fromkeys(map(_describe_values, types)))
    return _PLAIN.get(hint, "TEXT")


def _default_text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def _split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split the type hint `Annotated[T, ...]` into T and its annotations."""
    if get_origin(hint) is Annotated:
        inner, annotations = _split_annotated(get_args(hint)[0])
        return inner, (*annotations, *hint.__metadata__)
    return hint, ()


def _read_field_docs(command: type) -> dict[str, str]:
    """Return, by field name, the text below each field in the source code of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(command))).body
    assert isinstance(definition, ast.ClassDef)
    return dict(_documented_fields(definition.body))


def _documented_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, following in pairwise(body):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, text
