"""The field `override` of an experiment: values of the method by path, from PATH=VALUE texts or from tables."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedraa.components.text import KIND, text_of
from fedraa.errors import InputError

# The paths without a dot. Each sets a whole component.
COMPONENT_PATHS = ("submodel", "update")
EXAMPLE = "PATH=VALUE, such as local.momentum=0.9"


class Overrides(dict[str, Any]):
    """Values of a method by path. The mapping is hashable, like an experiment, and never changes."""

    # The base class declares that a dict has no hash.
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def read_overrides(source: object, known: Collection[str]) -> Overrides:
    """Return the values by path.

    Args:
        source: None, PATH=VALUE texts, or a mapping of paths to values. A value that is a mapping is a nested table, or
            a component if it has a `kind`.
        known: The names of an experiment's fields.

    Raises:
        InputError: A text has no path, a name is no path, or a path occurs twice.
    """
    if source is None:
        return Overrides()
    if isinstance(source, str):
        source = (source,)
    if not isinstance(source, Mapping | list | tuple):
        raise InputError("override", got=source, expected=f"a mapping of paths to values, or texts {EXAMPLE}")
    pairs: Iterable[tuple[str, Any]] = map(_split_pair, source)
    if isinstance(source, Mapping):
        pairs = flat_table(source)
    values = Overrides()
    for path, value in pairs:
        if path in values:
            raise InputError("override", f"{path} is given twice", hint="give it once")
        if "." not in path and path not in COMPONENT_PATHS:
            hint = f"give it as the option {path}" if path in known else "`fedraa methods NAME` lists all paths"
            raise InputError("override", f"{path!r} is no path", expected=EXAMPLE, hint=hint)
        if isinstance(value, list):
            value = tuple(value)
        values[path] = value
    return values


def split_paths(values: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment that set these values. Values with a path become part of its `override`.

    Args:
        values: The values by name. A name with a dot is a path.
        override: The experiment's override, which keeps its other paths.
    """
    fields = {name: value for name, value in values.items() if "." not in name}
    paths = {name: value for name, value in values.items() if "." in name}
    if not paths:
        return fields
    return {**fields, "override": Overrides({**override, **paths})}


def read_literal(text: str) -> Any:
    """Return the Python literal in a text, or the text itself."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def flat_table(table: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each entry of a table, including entries of the tables in it.

    A table with a `kind` describes a component. It is one value, the text of the component.

    Args:
        table: The table.
        path: The path of the table itself.
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
    """Return values of config.json as PATH=VALUE texts, which `read_overrides` reads."""
    return tuple(f"{path}={_value_text(value)}" for path, value in values.items())


def _split_pair(text: object) -> tuple[str, Any]:
    if not isinstance(text, str) or "=" not in text:
        raise InputError("override", got=text, expected=EXAMPLE)
    path, _, value = text.partition("=")
    return path.strip().replace("-", "_"), read_literal(value)


def _value_text(value: Any) -> str:
    """Return a value as text that `read_literal` reads."""
    if isinstance(value, str) and read_literal(value) == value:
        return value
    if isinstance(value, list):
        value = tuple(value)
    return repr(value)
