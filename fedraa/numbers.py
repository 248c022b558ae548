"""Check numbers against the annotations of dataclass fields, round numbers, and format quantities."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from fedraa.errors import InputError, plain_text

# Models and updates are float32, in which a number above 3.4e38 is infinite.
MAX_FLOAT32 = 3e38
Positive = Annotated[float, Field(gt=0, le=MAX_FLOAT32, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_FLOAT32, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, le=MAX_FLOAT32, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
UpToOne = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
# NumPy's integers have 64 bits.
Count = Annotated[int, Field(ge=1, lt=2**63)]

# Numbers are rounded to these decimals before they are rounded up or down, because 0.29 * 100 is 28.999999999999996.
EXACT_DECIMALS = 9

# For each error type of pydantic: the words before a bound in a message, and the bound's key in the error's `ctx`.
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("from", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("up to", "le"),
}
# For each error type of pydantic: the type that is expected.
_TYPES = {
    "bool_parsing": "True or False",
    "bool_type": "True or False",
    "dict_type": "a mapping",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "path_type": "a path",
    "string_type": "text",
    "tuple_type": "a list",
}


def convert_numbers(values: Mapping[str, object], kind: Any, field: str) -> dict[str, Any]:
    """Return numbers, booleans, text and tuples of these, converted to the types of a dataclass.

    An int becomes a float if the field has floats, and NumPy numbers become Python numbers.

    Args:
        values: The values by the names of the dataclass's fields.
        kind: The dataclass.
        field: The name of the component. An error's field is this name, a dot and the name of the wrong value.

    Raises:
        InputError: The dataclass does not allow one of the values.
    """
    converted = {}
    for name, adapter in _make_adapters(kind).items():
        if name not in values:
            continue
        try:
            converted[name] = adapter.validate_python(to_python_value(values[name]), strict=True)
        except ValidationError as error:
            expected = expected_text(error.errors(include_url=False)[0])
            raise InputError(f"{field}.{name}", got=values[name], expected=expected) from None
    return converted


def expected_text(details: Any) -> str:
    """Return the allowed values from an error of pydantic, as the text after "expected"."""
    if details["type"] in _BOUNDS:
        words, name = _BOUNDS[details["type"]]
        return f"a number {words} {plain_text(details['ctx'][name])}"
    if details["type"] in _TYPES:
        return _TYPES[details["type"]]
    text = details["msg"].removeprefix("Input should be ")
    return re.sub(r", (got|unable) .*", "", text, flags=re.DOTALL)


def to_python_value(value: object) -> object:
    """Return a NumPy number as a Python number, and a NumPy array or a list as a tuple."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(map(to_python_value, value))
    return value


@cache
def _make_adapters(kind: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """Return validators for a dataclass's fields with numbers, booleans, text or tuples of these."""
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    return {name: TypeAdapter(hints[name]) for name in names if _is_plain(hints[name])}


def _is_plain(hint: Any) -> bool:
    """Return True if a type allows only numbers, booleans, text, None, or tuples of these."""
    if get_origin(hint) in (UnionType, Union, Annotated, tuple):
        alternatives = get_args(hint)
        if get_origin(hint) is Annotated:
            alternatives = alternatives[:1]
        return all(map(_is_plain, alternatives))
    return hint in (bool, int, float, str, NoneType, ...) or get_origin(hint) is Literal


def round_down(number: float) -> int:
    """Return the largest integer up to `number`, without rounding errors: 0.29 * 100 gives 29."""
    return math.floor(round(number, EXACT_DECIMALS))


def round_up(number: float) -> int:
    """Return the smallest integer from `number` on, without rounding errors: 1.1 * 100 gives 110."""
    return math.ceil(round(number, EXACT_DECIMALS))


def round_to_total(quotas: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Round numbers [n] with the sum `total` up or down to integers [n] with this sum (largest-remainder method).

    The largest fractional parts are rounded up. Among equal ones, the first are rounded up.
    """
    integers = np.floor(quotas).astype(np.int64)
    largest = np.argsort(integers - quotas, kind="stable")[: total - integers.sum()]
    integers[largest] += 1
    return integers


def format_quantity(value: object, unit: str) -> str:
    """Return a number with a decimal prefix: 1234567 B is 1.23 MB."""
    number = float(str(value))
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} P{unit}"


def format_count(number: float, noun: str) -> str:
    """Return a number without decimals and its noun: 1 run, 2 runs."""
    text = f"{number:.0f}"
    return f"{text} {noun}{'' if text == '1' else 's'}"
