"""Check and convert the fields of a component by their annotations."""

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
    ours = next((at for at, kind in enumerate(kinds) if is_ours(kind) and is_dataclass(kind)), None)
    if ours is None:
        return
    anew = {name for kind in kinds[:ours] for name in inspect.get_annotations(kind)}
    names = [each.name for each in fields(kinds[ours]) if each.name not in anew and hasattr(part, each.name)]
    for name, value in convert_numbers({name: getattr(part, name) for name in names}, kinds[ours], field).items():
        if type(value) is not type(getattr(part, name)) or isinstance(value, tuple):
            # Most components are frozen.
            object.__setattr__(part, name, value)


def check_arguments(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], field: str) -> None:
    """Check the values for a built-in class, before its own checks.

    Args:
        make: The class.
        arguments: The positional values.
        values: The values by their names.
        field: The field that takes the component. Errors are about `field.NAME`.

    Raises:
        InputError: The class does not allow a value.
    """
    if inspect.isclass(make) and is_ours(make) and is_dataclass(make):
        names = (each.name for each in fields(make) if each.init)
        convert_numbers(dict(zip(names, arguments, strict=False)) | dict(values), make, field)
