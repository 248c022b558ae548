"""Numbers: those that a value takes, told by its annotation, and how people read them."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


def with_plain_numbers(part: Any) -> Any:
    """This dataclass, or one like it whose NumPy numbers are Python's, as they can be written down."""
    held = {each.name: getattr(part, each.name) for each in fields(part) if each.init}
    numpys = {name: value.item() for name, value in held.items() if isinstance(value, np.generic)}
    return replace(part, **numpys) if numpys else part


def check_numbers(values: Mapping[str, object], kind: Any, said: str) -> None:
    """ValueError, one sentence that begins with `said`, for a value that the dataclass `kind` does not take.

    Looked at are its fields that are numbers, flags or text.
    """
    for name, takes in _taken(kind).items():
        if name not in values:
            continue
        value = values[name]
        try:
            takes.validate_python(value.item() if isinstance(value, np.generic) else value, strict=True)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].replace("Input", "it", 1)
            raise ValueError(f"{said}: {name} is {value!r}; {message}") from None


@cache
def _taken(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """What each field of a dataclass takes that is a number, a flag or text."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: TypeAdapter(hints[each.name]) for each in fields(kind) if _is_plain(hints[each.name])}


def _is_plain(hint: Any) -> bool:
    """Whether values of this annotation are numbers, flags or text, None among them."""
    if get_origin(hint) in (UnionType, Union, Annotated):
        alternatives = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
        return all(map(_is_plain, alternatives))
    return hint in (bool, int, float, str, NoneType) or get_origin(hint) is Literal


def quantity(value: object, unit: str) -> str:
    """A number with a decimal prefix: 1234567 B is 1.23 MB."""
    number = float(str(value))
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} P{unit}"


def counted(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
