"""One line of a log, and the words for what is wrong with it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedraa.errors import Inconsistent
from fedraa.rundir.event_reader import parse_object
from fedraa.rundir.file_names import EVENTS


@dataclass(frozen=True)
class Line:
    """An event as it stands in the log, `number` counted from 1."""

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
            raise Inconsistent(f"{EVENTS} line {self.number}: has no {field}")
        return self.fields[field]

    def number_of(self, field: str) -> float:
        value = self[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(f"{field} is {value!r}; the rules give a number")
        return value

    def at_least(self, field: str, bound: float) -> float:
        value = self.number_of(field)
        if value < bound:
            raise self.wrong(f"{field} is {value!r}; the rules give at least {bound!r}")
        return value

    def between(self, field: str, low: float, high: float) -> float:
        value = self.number_of(field)
        if not low <= value <= high:
            raise self.wrong(f"{field} is {value!r}; the rules give {low} to {high}")
        return value

    def expect(self, field: str, value: object) -> None:
        """The field says exactly this: floats to the last bit, and no 1 for True or 1.0."""
        said = self[field]
        if json.dumps(said) != json.dumps(value):
            raise self.wrong(f"{field} is {said!r}; the rules give {value!r}")

    def wrong(self, what: str) -> Inconsistent:
        return Inconsistent(f"{EVENTS} line {self.number} ({self.kind}): {what}")


def read(directory: Path) -> Iterator[Line]:
    """The lines of a run's log, numbered without gaps."""
    with (directory / EVENTS).open(encoding="utf-8", errors="replace") as stream:
        for number, text in enumerate(stream, 1):
            fields = parse_object(text)
            if fields is None:
                raise Inconsistent(f"{EVENTS} line {number}: is no JSON object: {text[:60]!r}")
            line = Line(number, fields)
            line.expect("seq", number - 1)
            line.at_least("wall", 0)
            yield line
