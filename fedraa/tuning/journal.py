"""The journal: a file with all finished trials. An interrupted tuning continues from it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedraa.errors import InputError
from fedraa.reading.regular_files import read_regular_file

JOURNAL = "trials.jsonl"
HINT = "restore the file from a copy, or choose another directory to start again"


@dataclass(frozen=True)
class Trial:
    """A finished trial of a method: its values and its result.

    Args:
        method: The name of the method.
        number: The index of the trial.
        values: The values of the tuned fields.
        state: `done`, `failed`, or `stopped` (early, because the metric was bad).
        value: The final metric on validation data; None unless the trial is `done`.
        curve: The metric after each tenth of the budget. The key is the number of tenths, as text.
        why: The reason of a failure, otherwise empty.
        seconds: The real duration of the trial in seconds.
        steps: The number of server updates or rounds; None if the trial failed.
        reached: The time on the run's clock at which the trial reached the target, if it did.
    """

    method: str
    number: int
    values: Mapping[str, Any]
    state: Literal["done", "stopped", "failed"]
    value: float | None = None
    curve: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    seconds: float = 0.0
    steps: int | None = None
    reached: float | None = None


class Journal:
    """A file with the finished trials of a tuning, one per line.

    A killed process may have left an incomplete last line. The constructor removes this line from the file.

    Raises InputError if the file cannot be read, or if another line is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / JOURNAL
        self.trials: list[Trial] = []
        if self._path.exists():
            self._read_trials()

    def _read_trials(self) -> None:
        """Read the trials, and remove an incomplete last line from the file."""
        try:
            content = read_regular_file(self._path)
        except OSError as error:
            raise InputError("out", f"{self._path} cannot be read: {error.strerror or error}", hint=HINT) from None
        *lines, rest = content.split(b"\n")
        for number, line in enumerate(lines, 1):
            trial = _parse_trial(line)
            if trial is None:
                raise InputError("out", f"line {number} of {self._path} is not a trial", hint=HINT)
            self.trials.append(trial)
        if rest:
            os.truncate(self._path, len(content) - len(rest))

    def of(self, method: str) -> list[Trial]:
        """Return the trials of a method in the order of their numbers."""
        return sorted((trial for trial in self.trials if trial.method == method), key=lambda trial: trial.number)

    def add(self, trial: Trial) -> None:
        with self._path.open("ab") as stream:
            stream.write(json.dumps(asdict(trial), allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.trials.append(trial)


def _list_to_tuple(value: object) -> object:
    if isinstance(value, list):
        return tuple(value)
    return value


def _parse_trial(line: bytes) -> Trial | None:
    """Return the trial in a line; None if the line holds no trial."""
    try:
        fields = json.loads(line)
        values = {name: _list_to_tuple(value) for name, value in fields["values"].items()}
        return Trial(**fields | {"values": values})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
