"""Numbers: those that a value takes, told by its annotation, and how people read them."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fedraa.errors import short_text

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
UpToOne = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


def taken(values: Mapping[str, object], kind: Any, said: str) -> dict[str, Any]:
    """Those of the values that are numbers, flags or text, and tuples of these, as the dataclass `kind` has them.

    1 is 1.0 where it has floats, and what is NumPy's is Python's: so they can be written down, and come back the same.
    ValueError, one sentence that begins with `said`, for one that it does not take.
    """
    found = {}
    for name, takes in _taken(kind).items():
        if name not in values:
            continue
        try:
            found[name] = takes.validate_python(of_python(values[name]), strict=True)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].replace("Input", "it", 1)
            raise ValueError(f"{said}: {name} is {short_text(values[name])}; {message}") from None
    return found


def of_python(value: object) -> object:
    """A number, or an array of numbers, of NumPy as Python has it; lists are tuples."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(of_python, value)) if isinstance(value, list | tuple) else value


@cache
def _taken(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """What each field of a dataclass takes that is a number, a flag or text, or a tuple of these."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: TypeAdapter(hints[each.name]) for each in fields(kind) if _is_plain(hints[each.name])}


def _is_plain(hint: Any) -> bool:
    """Whether values of this annotation are numbers, flags or text, or tuples of these, None among them."""
    if get_origin(hint) in (UnionType, Union, Annotated, tuple):
        alternatives = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
        return all(map(_is_plain, alternatives))
    return hint in (bool, int, float, str, NoneType, ...) or get_origin(hint) is Literal


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
