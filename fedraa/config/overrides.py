"""The field `override` of an experiment, which sets values of the method by path.

The user gives it as texts PATH=VALUE, or as a mapping.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedraa.components.text import KIND, LITERAL_ERRORS, text_of
from fedraa.errors import InputError

# Paths without a dot, which set a whole component.
COMPONENT_PATHS = ("submodel", "update")
EXAMPLE = "PATH=VALUE, such as local.momentum=0.9"


def read_overrides(source: object, known: Collection[str]) -> dict[str, Any]:
    """Return the values of `override` by path.

    Args:
        source: None, texts PATH=VALUE, or a mapping of paths to values. A value that is a mapping is a component if it
            has the key `kind`; otherwise its keys continue the path.
        known: The names of an experiment's fields.

    Raises:
        InputError: A text has no path, a path is malformed, or a path occurs twice.
    """
    if source is None:
        return {}
    if isinstance(source, str):
        source = (source,)
    if not isinstance(source, Mapping | list | tuple):
        raise InputError("override", got=source, expected=f"a mapping of paths to values, or texts {EXAMPLE}")
    pairs: Iterable[tuple[str, Any]] = map(_split_pair, source)
    if isinstance(source, Mapping):
        pairs = flat_table(source)
    values: dict[str, Any] = {}
    for path, value in pairs:
        if path in values:
            raise InputError("override", f"{path} is given twice", hint="give it once")
        if "." not in path and path not in COMPONENT_PATHS:
            hint = f"give it as the option {path}" if path in known else "`fedraa methods NAME` lists all paths"
            raise InputError("override", f"{path!r} is not a path", expected=EXAMPLE, hint=hint)
        if isinstance(value, list):
            value = tuple(value)
        values[path] = value
    return values


def split_paths(values: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment fields that set these values. Values with a path go into `override`.

    Args:
        values: The values by name or by path. A path contains a dot.
        override: The current `override` of the experiment. Its other paths are kept.
    """
    fields = {name: value for name, value in values.items() if "." not in name}
    paths = {name: value for name, value in values.items() if "." in name}
    if not paths:
        return fields
    return {**fields, "override": {**override, **paths}}


def read_literal(text: str) -> Any:
    """Return the value of a Python literal, or the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text.strip())
    except LITERAL_ERRORS:
        return text.strip()


def flat_table(table: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each entry of a table and its nested tables.

    `path` is the path of the table itself; empty for the outermost table. A nested table with the key `kind` is a
    component and becomes one text.
    """
    for name, value in table.items():
        below = f"{path}.{name}" if path else str(name)
        if not isinstance(value, Mapping):
            yield below, value
        elif isinstance(value.get(KIND), str):
            yield below, text_of(value)
        else:
            yield from flat_table(value, below)


def override_texts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of `override` as texts PATH=VALUE for `read_overrides`."""
    return tuple(f"{path}={_value_text(value)}" for path, value in values.items())


def _split_pair(text: object) -> tuple[str, Any]:
    if not isinstance(text, str) or "=" not in text:
        raise InputError("override", got=text, expected=EXAMPLE)
    path, _, value = text.partition("=")
    return path.strip().replace("-", "_"), read_literal(value)


def _value_text(value: Any) -> str:
    """Return a value as a text that `read_literal` can read."""
    if isinstance(value, str) and read_literal(value) == value:
        return value
    if isinstance(value, list):
        value = tuple(value)
    return repr(value)
