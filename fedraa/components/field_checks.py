"""Check and convert a component's fields by their type annotations."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedraa.components.text import is_built_in, values_of
from fedraa.errors import InputError
from fedraa.numbers import convert_numbers


def check_component_fields(part: object, field: str) -> None:
    """Convert a component's numbers, booleans and texts, in place, to the annotated types.

    In a custom component, only the fields that a built-in base class declares are converted.

    Args:
        part: The component.
        field: The field that takes the component.

    Raises:
        InputError: The class does not allow a value, or the value is infinite or NaN. The error's field is
            `field.NAME`.
    """
    for name, value in values_of(part).items():
        if _has_infinite(value):
            problem = "config.json stores it, and JSON has neither infinity nor NaN"
            raise InputError(f"{field}.{name}", problem, got=value, hint="use a finite number, or None")
    kinds = type(part).__mro__
    redeclared: set[str] = set()
    for kind in kinds:
        if is_built_in(kind) and is_dataclass(kind):
            break
        redeclared.update(inspect.get_annotations(kind))
    else:
        return
    names = [item.name for item in fields(kind) if item.name not in redeclared and hasattr(part, item.name)]
    for name, value in convert_numbers({name: getattr(part, name) for name in names}, kind, field).items():
        if type(value) is not type(getattr(part, name)) or isinstance(value, tuple):
            # Most components are frozen dataclasses, so a normal assignment would fail.
            object.__setattr__(part, name, value)


def check_arguments(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], field: str) -> None:
    """Check arguments against the field types of a built-in class, before an object is created.

    Args:
        make: The class. Custom classes and functions are not checked.
        arguments: The positional arguments.
        values: The keyword arguments.
        field: The field that takes the component.

    Raises:
        InputError: The class does not allow a value. The field of the error is `field.NAME`.
    """
    if inspect.isclass(make) and is_built_in(make) and is_dataclass(make):
        names = (item.name for item in fields(make) if item.init)
        convert_numbers(dict(zip(names, arguments, strict=False)) | dict(values), make, field)


def _has_infinite(value: object) -> bool:
    """Return True if a value is infinite or NaN, or contains such a value."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return any(map(_has_infinite, value))
    return isinstance(value, float | np.floating) and not np.isfinite(value)
