"""The search space: a range or a list of values for each tuned field of an experiment."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from fedraa.components.text import text_of
from fedraa.composition.overrides import SHORTCUTS
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import read_literal
from fedraa.config.usual_names import USUAL_PATHS, suggest_name
from fedraa.errors import InputError

Value = Any
OF_EVERY_METHOD = {"lr", "lr_schedule", "batch_size", "local_epochs", "local_steps"}
# Dotted paths, such as local.sam_rho, can also be tuned.
TUNABLE = {*SHORTCUTS, *OF_EVERY_METHOD} - {"updates", "rounds"}
TAKES = "LOW:HIGH, LOW:HIGH:log, or values with commas between them"
# A value is at an edge of a range if its distance from the end is at most this fraction of the range.
EDGE = 0.05
# Values from a range have this number of significant digits.
DIGITS = 3
# Matches a number in a text. Digits in a name do not match.
_NUMBER = re.compile(r"(?<![\w.])(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?![\w.])")


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, or only the integers if `whole`. Random values are log-uniform if `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.low, self.high

    def contains(self, value: Value) -> bool:
        return self.low <= float(value) <= self.high

    def edge_side(self, value: Value) -> int:
        """Return -1 if the value is at the lower edge of the range, 1 if it is at the upper edge, and 0 otherwise."""
        low, high, at = map(self._to_scale, (self.low, self.high, float(value)))
        place = (at - low) / (high - low)
        if place <= EDGE:
            return -1
        return int(place >= 1 - EDGE)

    def widen_side(self, side: int) -> "Range":
        """Return the range, extended by half of its length at the lower (-1) or upper (1) end.

        The length of a log range is the difference of the logarithms of its ends.
        """
        low, high = self._to_scale(self.low), self._to_scale(self.high)
        step = side * (high - low) / 2
        if side > 0:
            return replace(self, high=self._from_scale(high + step))
        return replace(self, low=self._from_scale(low + step))

    def rounded(self, value: float) -> Value:
        """Return the value rounded to `DIGITS` significant digits, or to an integer if `whole`.

        The result is in the range.
        """
        if self.whole:
            return round(value)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def _to_scale(self, value: float) -> float:
        if self.log:
            return math.log(value)
        return value

    def _from_scale(self, value: float) -> float:
        """Return the inverse of `_to_scale`, rounded to a value of the range."""
        if self.log:
            value = math.exp(value)
        if self.whole:
            return round(value)
        return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Choices:
    """A list of values.

    Numbers are sorted. Texts that differ only in one number, such as auto:5 and auto:10, are sorted by this number.
    """

    values: tuple[Value, ...]

    @property
    def ordered(self) -> bool:
        return _varying_numbers(self.values) is not None

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    def contains(self, value: Value) -> bool:
        return value in self.values

    def edge_side(self, value: Value) -> int:
        """Return -1 if the value is the first of the sorted values, 1 if it is the last, and 0 otherwise."""
        if not self.ordered or len(self.values) < 2:
            return 0
        if value == self.values[0]:
            return -1
        return int(value == self.values[-1])

    def widen_side(self, side: int) -> "Choices":
        """Return the choices with one more value at the lower (-1) or upper (1) end.

        The new value continues the two values at this end with the same ratio, such as 0.1, 0.2, 0.4. If one of the two
        is 0, it continues them with the same difference.
        """
        family = _varying_numbers(self.values)
        if family is None:
            return self
        numbers, make = family
        # `last` is the value at this end, and `near` is the value beside it.
        near, last = numbers[-2:]
        if side < 0:
            last, near = numbers[:2]
        following: float = 2 * last - near
        if near and last:
            following = last * last / near
        if isinstance(last, int) and isinstance(near, int):
            following = round(following)
        else:
            following = float(f"{following:.{DIGITS}g}")
        if following in numbers:
            return self
        if side > 0:
            return Choices((*self.values, make(following)))
        return Choices((make(following), *self.values))


def _varying_numbers(values: Sequence[Value]) -> tuple[list[Any], Callable[[float], Value]] | None:
    """Return the number in each value, and a function that converts such a number to a value.

    Return None if the values are neither numbers nor texts that differ only in one number.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(values), lambda number: number
    if len(values) < 2 or not all(isinstance(value, str) for value in values):
        return None
    # `split` returns the parts of a text in order. The numbers have odd indices, because the pattern has a group.
    parts = [_NUMBER.split(value) for value in values]
    if len(set(map(len, parts))) > 1:
        return None
    differ = [at for at, texts in enumerate(zip(*parts, strict=True)) if len(set(texts)) > 1]
    if len(differ) != 1 or differ[0] % 2 == 0:
        return None
    at = differ[0]
    first = parts[0]
    numbers = [read_literal(texts[at]) for texts in parts]
    # A text such as 007 does not count as a number, because the number 7 has a different text.
    if any(isinstance(number, str) for number in numbers):
        return None
    return numbers, lambda number: "".join([*first[:at], str(number), *first[at + 1 :]])


Parameter = Range | Choices
Space = Mapping[str, Parameter]


def make_space(description: Mapping[str, object] | Sequence[str]) -> dict[str, Parameter]:
    """Return the search space that a list or a mapping describes.

    A list has texts NAME=VALUES, such as `["lr=0.01:1:log", "local.sam_rho=0.05,0.1"]`. A mapping has values such as
    `"0.01:1:log"`, (0.01, 1, "log") or [0.1, 0.2]. A name is a field of an experiment, or a dotted path in the method.

    Raises InputError with the field `space`, or `space.NAME` for the values of a field.
    """
    if isinstance(description, str) or not isinstance(description, Mapping | Sequence):
        raise InputError("space", got=description, expected="NAME=VALUES of one or more fields")
    pairs = (
        description.items()
        if isinstance(description, Mapping)
        else [_split_name_and_values(text) for text in description]
    )
    if not pairs:
        raise InputError("space", "it is empty", hint="give NAME=VALUES of one or more fields, such as lr=0.01:1:log")
    space: dict[str, Parameter] = {}
    for name, values in pairs:
        if not isinstance(name, str):
            raise InputError("space", got=name, expected="the name of a field as text")
        if name not in TUNABLE and "." not in name:
            raise _not_tunable(name)
        if name in space:
            raise InputError("space", f"{name} occurs twice", hint="give it once")
        space[name] = _make_parameter(name, values)
    return space


def _not_tunable(name: str) -> InputError:
    """Return an error that suggests a similar name or lists all names."""
    suggestion = suggest_name(name, TUNABLE)
    if name in USUAL_PATHS:
        suggestion = f"did you mean {USUAL_PATHS[name]}?"
    expected = ""
    if not suggestion:
        expected = f"one of {', '.join(sorted(TUNABLE))}"
    return InputError("space", f"{name!r} cannot be tuned", expected=expected, hint=suggestion)


def describe_space(space: Space) -> dict[str, str]:
    """Return the space as texts that `make_space` accepts."""
    return {name: _parameter_text(parameter) for name, parameter in space.items()}


def _parameter_text(parameter: Parameter) -> str:
    if isinstance(parameter, Choices):
        return ",".join(str(value if isinstance(value, tuple) else text_of(value)) for value in parameter.values)
    return f"{parameter.low:g}:{parameter.high:g}" + ":log" * parameter.log


def _split_name_and_values(text: object) -> tuple[str, str]:
    name, equals, values = str(text).partition("=")
    if not isinstance(text, str) or not equals:
        raise InputError("space", got=text, expected="NAME=VALUES, such as lr=0.01:1:log")
    return name.strip().replace("-", "_"), values


def _make_parameter(name: str, values: object) -> Parameter:
    """Return the range or the choices that the values of a field describe."""
    if isinstance(values, list):
        return _make_choices(name, values, values)
    if isinstance(values, str):
        parts = values.split(":")
        numbers = [read_literal(part) for part in parts[:2]]
        log = parts[2:] == ["log"]
        if not (len(parts) == 2 or log) or not all(isinstance(number, int | float) for number in numbers):
            return _make_choices(name, [read_literal(part) for part in _split_at_outer_commas(values)], values)
        return _make_range(name, numbers, log=log, values=values)
    if isinstance(values, tuple) and values[2:] in ((), ("log",)) and len(values) > 1:
        return _make_range(name, list(values[:2]), log=len(values) > 2, values=values)
    raise _wrong_values(name, values, expected=TAKES)


def _make_range(name: str, numbers: list[Any], *, log: bool, values: object) -> Range:
    low, high = numbers
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers) or low >= high:
        raise _wrong_values(name, values, problem="LOW must be below HIGH")
    if log and low <= 0:
        raise _wrong_values(name, values, problem="a logarithmic range begins above 0")
    # The type of the value at a dotted path depends on the method, which is unknown here. The value is checked later.
    types = {int} if "." in name else _field_types(Experiment.model_fields[name].annotation)
    if not types & {int, float}:
        raise _wrong_values(
            name, values, problem="its values are not numbers", hint="give values with commas between them"
        )
    if isinstance(low, int) and isinstance(high, int) and float not in types:
        return Range(low, high, log, whole=True)
    return Range(float(low), float(high), log)


def _field_types(annotation: Any) -> set[Any]:
    """Return the types in an annotation, and the words that it allows."""
    types = {annotation}
    if get_origin(annotation):
        types.update(*map(_field_types, get_args(annotation)))
    return types


def _wrong_values(name: str, values: object, *, problem: str = "", expected: str = "", hint: str = "") -> InputError:
    return InputError(f"space.{name}", problem, got=values, expected=expected, hint=hint)


def _make_choices(name: str, choices: list[Any], values: object) -> Choices:
    """Return choices. Numbers, and texts that differ only in one number, are sorted in ascending order."""
    if not choices or any(value == "" for value in choices) or len({repr(value) for value in choices}) < len(choices):
        raise _wrong_values(name, values, expected=f"{TAKES}, each value once")
    if not all(map(_can_be_written, choices)):
        hint = "leave out None, and give components as text, such as 'polynomial(exponent=0.5)'"
        raise _wrong_values(name, values, expected="texts, numbers, booleans, or lists of these", hint=hint)
    types = set() if "." in name else _field_types(Experiment.model_fields[name].annotation)
    is_number = bool(types & {int, float}) and str not in types
    # Some numbers can also be a word, such as `auto`.
    if is_number and any(isinstance(value, str) and value not in types for value in choices):
        raise _wrong_values(name, values, expected=f"numbers as {TAKES}")
    choices = [tuple(value) if isinstance(value, list) else value for value in choices]
    family = _varying_numbers(choices)
    if family is not None:
        choices = [value for _, value in sorted(zip(family[0], choices, strict=True), key=lambda pair: pair[0])]
    return Choices(tuple(choices))


def _can_be_written(value: object) -> bool:
    """Return True if the file of tuned values can have the value. TOML has no None."""
    if isinstance(value, list | tuple):
        return all(map(_can_be_written, value))
    return isinstance(value, str | bool | int | float)


def _split_at_outer_commas(text: str) -> list[str]:
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
