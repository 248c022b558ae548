"""Checks and conversions of a component's fields by their annotations."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedraa.components.text import is_ours
from fedraa.numbers import convert_numbers


def check_part(part: object, field: str) -> None:
    """Convert a component's numbers, flags and text, in place, to the types of its built-in class.

    For a custom component these are the fields that it inherits from a built-in class and does not annotate again.
    Raises InputError about `field.NAME` for a value that the class does not allow.
    """
    kinds = type(part).__mro__
    redeclared: set[str] = set()
    for kind in kinds:
        if is_ours(kind) and is_dataclass(kind):
            break
        redeclared.update(inspect.get_annotations(kind))
    else:
        return
    names = [item.name for item in fields(kind) if item.name not in redeclared and hasattr(part, item.name)]
    for name, value in convert_numbers({name: getattr(part, name) for name in names}, kind, field).items():
        if type(value) is not type(getattr(part, name)) or isinstance(value, tuple):
            # Fields of most components cannot be assigned, because the dataclasses are frozen.
            object.__setattr__(part, name, value)


def check_arguments(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], field: str) -> None:
    """Check the values for a built-in class, before the class checks them itself.

    Args:
        make: The class.
        arguments: The positional values.
        values: The values by their names.
        field: The field that takes the component. Errors are about `field.NAME`.

    Raises:
        InputError: The class does not allow a value.
    """
    if inspect.isclass(make) and is_ours(make) and is_dataclass(make):
        names = (item.name for item in fields(make) if item.init)
        convert_numbers(dict(zip(names, arguments, strict=False)) | dict(values), make, field)
