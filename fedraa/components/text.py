"""Conversion of components to text, `Name(field=value)`, or JSON, and back.

A component has one of these forms:
    a name (`gre-raa`), with values if it takes some (`polynomial(exponent=0.3)`)
    an import path (`package.module:Name`), also with values
    a mapping (`{"kind": NAME_OR_PATH, field: value, ...}`)
    an object: an instance, a class that takes no arguments, or a function
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np

from fedraa.components.imports import imported, is_path
from fedraa.errors import InputError

KIND = "kind"
# Classes of these packages are named without their module.
OURS = ("fedraa", "schedulers")
COMPONENT_TEXT = re.compile(r"\s*(?P<what>[^()]+?)\s*(?:\((?P<values>.*)\))?\s*", re.DOTALL)


def is_foreign(described: Any) -> bool:
    """Return True if the description is of a component that is not built in."""
    kind = described.get(KIND, "") if isinstance(described, Mapping) else described
    return isinstance(kind, str) and is_path(kind.partition("(")[0].strip())


def is_ours(made: object) -> bool:
    """Return True if a class, a function, or the class of an object is in a built-in package."""
    module: str = getattr(made, "__module__", type(made).__module__)
    return module.partition(".")[0] in OURS


def path_of(made: object) -> str:
    """Return the import path of a class or a function; the bare name of a built-in class."""
    name: str = getattr(made, "__qualname__", type(made).__qualname__)
    module: str = getattr(made, "__module__", type(made).__module__)
    return name if is_ours(made) and inspect.isclass(made) else f"{module}:{name}"


def paths_in(written: object) -> list[str]:
    """Return the import paths in the description of a component, and of the components that it holds."""
    if isinstance(written, Mapping | list | tuple):
        items = written.values() if isinstance(written, Mapping) else written
        return [path for item in items for path in paths_in(item)]
    match = COMPONENT_TEXT.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return []
    own = [match["what"]] if is_path(match["what"]) else []
    try:
        return own + paths_in(parse_arguments("", "", match["values"] or ""))
    except ValueError:
        return own


def describe(part: object) -> Any:
    """Return a component as JSON: its kind and values, or a plain value as it is.

    `ComponentRegistry.resolve` makes an equal one from it.

    The values are the fields of a dataclass, or the attributes that are named like the arguments of `__init__`.
    """
    if isinstance(part, Enum | np.generic):
        part = part.value if isinstance(part, Enum) else part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, tuple | list):
        return [describe(item) for item in part]
    if isinstance(part, Mapping):
        return {str(key): describe(value) for key, value in part.items()}
    if isinstance(part, FunctionType) or inspect.isclass(part):
        return path_of(part)
    return {KIND: path_of(type(part))} | {name: describe(value) for name, value in values_of(part).items()}


def text_of(part: object) -> Any:
    """Return a component in the form of a flag, `package.module:Name(field=value)`, or as JSON if it holds others."""
    described = describe(part)
    if not isinstance(described, dict) or any(isinstance(value, dict) for value in described.values()):
        return described
    given = {name: value for name, value in described.items() if name != KIND}
    if not isinstance(part, Mapping):
        given = {name: value for name, value in given.items() if value != _default(part, name)}
    values = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return described[KIND] + (f"({values})" if values else "")


def says(text: str, described: Mapping[str, Any]) -> bool:
    """Return True if every value in a component's text, `Name(field=value)`, is the one that `describe` wrote."""
    match = COMPONENT_TEXT.fullmatch(text)
    try:
        arguments, values = ((), {}) if match is None else parse_arguments("", text, match["values"] or "")
    except ValueError:
        return False
    said = {KIND: text if match is None else match["what"]} | {name: describe(value) for name, value in values.items()}
    return not arguments and all(described.get(name) == value for name, value in said.items())


def values_of(part: object) -> dict[str, Any]:
    """Return the values from which a component was made, as far as it keeps them."""
    if is_dataclass(part):
        return {item.name: getattr(part, item.name) for item in fields(part) if item.init and hasattr(part, item.name)}
    parameters = inspect.signature(type(part).__init__).parameters
    return {name: vars(part)[name] for name in parameters if name in getattr(part, "__dict__", {})}


def _default(part: object, name: str) -> object:
    parameter = inspect.signature(type(part)).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default


def parse_arguments(where: str, text: str, values: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the literals between the brackets of a component's text: positional values, and values by name.

    Args:
        where: The field, for errors.
        text: The whole text, for errors.
        values: The text between the brackets.
    """
    try:
        call = ast.parse(f"f({values})", mode="eval").body
        assert isinstance(call, ast.Call)
        assert all(word.arg for word in call.keywords)
        by_name = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        made = tuple(ast.literal_eval(argument) for argument in call.args), by_name
    except (SyntaxError, ValueError, AssertionError):
        raise InputError(where, got=text, expected="values that are Python literals, as in Name(share=0.1)") from None
    names = [word.arg for word in call.keywords]
    if twice := [name for name in by_name if names.count(name) > 1]:
        raise InputError(where, f"it has {twice[0]} twice", got=text, hint="give it once")
    return made


def rebuild(where: str, described: Any, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the object that `describe` wrote.

    Args:
        where: The field, for errors.
        described: The description. A mapping with a kind becomes one of `kinds` or is imported; a list becomes a tuple.
        kinds: Classes by name.
    """
    if isinstance(described, list | tuple):
        return tuple(rebuild(where, item, kinds) for item in described)
    if not isinstance(described, Mapping) or KIND not in described:
        return described
    values = {name: rebuild(where, value, kinds) for name, value in described.items() if name != KIND}
    kind = str(described[KIND])
    if kind not in kinds and not is_path(kind):
        raise InputError(where, "there is no such component; it was written by another version", got=kind)
    try:
        return (kinds.get(kind) or imported(where, kind))(**values)
    except TypeError as error:
        raise InputError(where, f"it cannot be made: {error}", got=kind) from None
