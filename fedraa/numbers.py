"""Numbers: those that a value takes, told by its annotation, and how people read them."""

from dataclasses import fields, replace
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, get_type_hints

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


def with_plain_numbers(part: Any) -> Any:
    """This dataclass, or one like it whose NumPy numbers are Python's, as they can be written down."""
    held = {each.name: getattr(part, each.name) for each in fields(part) if each.init}
    numpys = {name: value.item() for name, value in held.items() if isinstance(value, np.generic)}
    return replace(part, **numpys) if numpys else part


def check_numbers(part: object, kind: Any, said: str) -> None:
    """ValueError, one sentence that begins with `said`, for a value of a dataclass that its `Annotated` field refuses.

    Fields are those of `kind`, its class or the one it inherits from; what it annotates anew and fields of other
    annotations are not looked at.
    """
    inheriting = type(part).__mro__[: type(part).__mro__.index(kind)]
    anew = {name for each in inheriting for name in get_annotations(each)}
    for name, takes in _annotated(kind).items():
        if name in anew or not hasattr(part, name):
            continue
        value = getattr(part, name)
        try:
            takes.validate_python(value.item() if isinstance(value, np.generic) else value, strict=True)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].replace("Input", "it", 1)
            raise ValueError(f"{said}: {name} is {value!r}; {message}") from None


@cache
def _annotated(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """What each annotated field of a dataclass takes."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: TypeAdapter(hints[each.name]) for each in fields(kind) if "Annotated" in repr(hints[each.name])}


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
