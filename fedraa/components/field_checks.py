"""Check and convert the fields of a component by their annotations."""

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedraa.components.text import is_ours
from fedraa.numbers import taken


def check_part(part: object, said: str) -> None:
    """Changes a part's numbers, flags and text, in place, into equal ones of the types that one of our classes has.

    Of an own part these are fields that it inherits from ours, but what it annotates anew. ValueError, one sentence
    that begins with `said`, for what the class refuses.
    """
    kinds = type(part).__mro__
    ours = next((at for at, kind in enumerate(kinds) if is_ours(kind) and is_dataclass(kind)), None)
    if ours is None:
        return
    anew = {name for kind in kinds[:ours] for name in inspect.get_annotations(kind)}
    names = [each.name for each in fields(kinds[ours]) if each.name not in anew and hasattr(part, each.name)]
    for name, value in taken({name: getattr(part, name) for name in names}, kinds[ours], said).items():
        if type(value) is not type(getattr(part, name)) or isinstance(value, tuple):
            object.__setattr__(part, name, value)  # most are frozen


def check_arguments(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], said: str) -> None:
    """The same of what a class of ours is to be made with, before it looks at that itself."""
    if inspect.isclass(make) and is_ours(make) and is_dataclass(make):
        names = (each.name for each in fields(make) if each.init)
        taken(dict(zip(names, arguments, strict=False)) | dict(values), make, said)
