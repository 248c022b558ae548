"""One line of a log, and the errors about it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedraa.errors import Inconsistent
from fedraa.rundir.event_reader import parse_object
from fedraa.rundir.file_names import EVENTS, SUMMARY


@dataclass(frozen=True)
class Line:
    """An event in the log, with its line `number` from 1.

    The methods that read a field raise Inconsistent if the field is missing or has a wrong value.
    """

    number: int
    fields: Mapping[str, object]

    @property
    def kind(self) -> str:
        return str(self["kind"])

    @property
    def t(self) -> float:
        return self.number_of("t")

    def __getitem__(self, field: str) -> object:
        if field not in self.fields:
            raise Inconsistent(f"{EVENTS} line {self.number}", f"it has no {field}")
        return self.fields[field]

    def number_of(self, field: str) -> float:
        """Return the value of a field, which must be a number."""
        value = self[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.field_error(field, "a number")
        return value

    def at_least(self, field: str, bound: float) -> float:
        """Return the value of a field, which must be a number of at least `bound`."""
        value = self.number_of(field)
        if value < bound:
            raise self.field_error(field, f"at least {bound!r}")
        return value

    def between(self, field: str, low: float, high: float) -> float:
        """Return the value of a field, which must be a number from `low` to `high`."""
        value = self.number_of(field)
        if not low <= value <= high:
            raise self.field_error(field, f"{low} to {high}")
        return value

    def expect_value(self, field: str, value: object) -> None:
        """Check that the field has exactly this value.

        Floats must be equal to the last bit. The types must also be equal: 1 is different from True and from 1.0.
        """
        if json.dumps(self[field]) != json.dumps(value):
            raise self.field_error(field, repr(value))

    def field_error(self, field: str, expected: str) -> Inconsistent:
        """Return an error about the value of a field."""
        return Inconsistent(f"{self._line_name} {field}", got=self[field], expected=expected)

    def wrong(self, problem: str) -> Inconsistent:
        """Return an error about the whole line."""
        return Inconsistent(self._line_name, problem)

    @property
    def _line_name(self) -> str:
        return f"{EVENTS} line {self.number} ({self.kind})"


def read_lines(directory: Path) -> Iterator[Line]:
    """Yield the lines of a run's log. If the run has not ended, an incomplete last line is skipped.

    Raises Inconsistent if a line is no JSON object, or if the lines are not numbered without gaps.
    """
    with (directory / EVENTS).open(encoding="utf-8", errors="replace") as stream:
        for number, text in enumerate(stream, 1):
            fields = parse_object(text)
            if fields is None and not text.endswith("\n") and not (directory / SUMMARY).exists():
                return
            if fields is None:
                raise Inconsistent(f"{EVENTS} line {number}", got=text[:60], expected="a JSON object")
            line = Line(number, fields)
            line.expect_value("seq", number - 1)
            line.at_least("wall", 0)
            yield line
