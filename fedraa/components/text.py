"""Convert components to text or JSON, and back.

A user or a file can give a component in these forms:

    a name (`gre-raa`), which may have values in brackets (`polynomial(exponent=0.3)`)
    an import path (`package.module:Name`), which may also have values in brackets
    a mapping (`{"kind": NAME_OR_PATH, field: value, ...}`)
    a Python object: an instance, a class that needs no arguments, or a function

In this module, the description of a component is its form as JSON: a name, an import path or a mapping.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from types import FunctionType
from typing import Any

import numpy as np

from fedraa.components.imports import import_object, is_path
from fedraa.errors import InputError

KIND = "kind"
# The description of a class in one of these packages has only the name of the class, not its import path.
BUILT_IN_PACKAGES = ("fedraa", "schedulers")
# `ast.literal_eval` raises these errors for a text that is not a literal.
LITERAL_ERRORS = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
COMPONENT_TEXT = re.compile(r"\s*(?P<kind>[^()]+?)\s*(?:\((?P<values>.*)\))?\s*", re.DOTALL)


def is_foreign(described: Any) -> bool:
    """Return True if the described component is custom: its description has an import path."""
    kind = described
    if isinstance(described, Mapping):
        kind = described.get(KIND, "")
    return isinstance(kind, str) and is_path(kind.partition("(")[0].strip())


def is_built_in(value: object) -> bool:
    """Return True if fedraa defines this class or this function, or the class of this object."""
    module: str = getattr(value, "__module__", type(value).__module__)
    return module.partition(".")[0] in BUILT_IN_PACKAGES


def import_path_of(value: object) -> str:
    """Return the import path of a class or a function. For a built-in class, return only its name."""
    name: str = getattr(value, "__qualname__", type(value).__qualname__)
    if is_built_in(value) and inspect.isclass(value):
        return name
    return f"{getattr(value, '__module__', type(value).__module__)}:{name}"


def paths_in(described: object) -> list[str]:
    """Return all import paths in the description of a component and of its parts."""
    if isinstance(described, Mapping):
        return paths_in(list(described.values()))
    if isinstance(described, list | tuple):
        return list(chain.from_iterable(map(paths_in, described)))
    if not isinstance(described, str):
        return []
    match = COMPONENT_TEXT.fullmatch(described)
    if match is None:
        return []
    paths = list(filter(is_path, [match["kind"]]))
    try:
        return paths + paths_in(parse_arguments("", "", match["values"] or ""))
    except ValueError:
        return paths


def is_script_path(path: str) -> bool:
    """Return True if only the script or notebook that defined the object can import it."""
    return "<" in path or path.startswith("__main__:")


def describe_component(part: object) -> Any:
    """Return a component as JSON: its kind and its values. Numbers and text stay unchanged.

    The values are a dataclass's fields, or the attributes that are named like the arguments of `__init__`.
    `ComponentRegistry.resolve` creates an equal component from the result.
    """
    if isinstance(part, Enum):
        part = part.value
    if isinstance(part, np.generic):
        part = part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, tuple | list):
        return [describe_component(item) for item in part]
    if isinstance(part, Mapping):
        return {str(key): describe_component(value) for key, value in part.items()}
    if isinstance(part, FunctionType) or inspect.isclass(part):
        return import_path_of(part)
    return {KIND: import_path_of(type(part))} | {
        name: describe_component(value) for name, value in values_of(part).items()
    }


def text_of(part: object) -> Any:
    """Return a component as text, `Name(field=value)`, without values that equal the defaults.

    If the component contains other components, the result is that of `describe_component`.
    """
    described = describe_component(part)
    if not isinstance(described, dict) or any(isinstance(value, dict) for value in described.values()):
        return described
    values = {name: value for name, value in described.items() if name != KIND}
    if not isinstance(part, Mapping):
        values = {name: value for name, value in values.items() if value != default_value(part, name)}
    if not values:
        return described[KIND]
    return f"{described[KIND]}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def matches_description(text: str, described: Mapping[str, Any]) -> bool:
    """Return True if the description has the kind and all values of a text `Name(field=value)`."""
    match = COMPONENT_TEXT.fullmatch(text)
    if match is None:
        return described.get(KIND) == text
    try:
        arguments, values = parse_arguments("", text, match["values"] or "")
    except ValueError:
        return False
    if arguments or described.get(KIND) != match["kind"]:
        return False
    return all(described.get(name) == describe_component(value) for name, value in values.items())


def values_of(part: object) -> dict[str, Any]:
    """Return the attributes of a component that have the names of its class's arguments."""
    if is_dataclass(part):
        return {item.name: getattr(part, item.name) for item in fields(part) if item.init and hasattr(part, item.name)}
    parameters = inspect.signature(type(part).__init__).parameters
    return {name: vars(part)[name] for name in parameters if name in getattr(part, "__dict__", {})}


def default_value(part: object, name: str) -> object:
    """Return the default of an argument of the component's class; `Parameter.empty` if it has none."""
    parameters = inspect.signature(type(part)).parameters
    if name not in parameters:
        return inspect.Parameter.empty
    return parameters[name].default


def parse_arguments(where: str, text: str, values: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments in the brackets of a component's text.

    Args:
        where: The name of the field, for errors.
        text: The whole text, for errors.
        values: The text between the brackets.
    """
    try:
        call = ast.parse(f"f({values})", mode="eval").body
        assert isinstance(call, ast.Call)
        # Text with two pairs of brackets, such as f(a=1)(b=2), is the call of another call.
        assert isinstance(call.func, ast.Name)
        assert all(word.arg for word in call.keywords)
        by_name = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        positional = tuple(ast.literal_eval(argument) for argument in call.args)
    except (*LITERAL_ERRORS, AssertionError):
        expected = "numbers, and texts in quotes, as in Name(share=0.1, word='a')"
        raise InputError(where, got=text, expected=expected) from None
    names = [word.arg for word in call.keywords]
    for name in by_name:
        if names.count(name) > 1:
            raise InputError(where, f"it has {name} twice", got=text, hint="give it once")
    return positional, by_name


def rebuild_component(where: str, described: Any, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """Create the object that a result of `describe_component` describes.

    Args:
        where: The name of the field, for errors.
        described: The description. A mapping with a kind becomes an object of this kind, and a list becomes a tuple.
        kinds: The built-in classes by name. A kind with an import path is imported.
    """
    if isinstance(described, list | tuple):
        return tuple(rebuild_component(where, item, kinds) for item in described)
    if not isinstance(described, Mapping) or KIND not in described:
        return described
    values = {name: rebuild_component(where, value, kinds) for name, value in described.items() if name != KIND}
    kind = str(described[KIND])
    if kind not in kinds and not is_path(kind):
        problem = "there is no such component"
        raise InputError(where, problem, got=kind, hint="use the version of fedraa that wrote the run")
    make = kinds.get(kind) or import_object(where, kind)
    try:
        return make(**values)
    except TypeError as error:
        problem = f"it cannot be created: {error}"
        raise InputError(where, problem, got=kind, hint="use the version of the code that wrote the run") from None
