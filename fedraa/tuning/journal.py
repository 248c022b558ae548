"""The trials that have ended, one line each, on the disk for good: what a tuning goes on from, however it ended."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

JOURNAL = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One trial of a method: the values tried, and what came of them.

    `value` is the figure at its end on validation data, None unless it is `done`; `curve` the figure at tenths of the
    budget, by their number. One that was `stopped` did worse than the others had at the same point; `why` says what
    went wrong with one that `failed`. `steps` are the server updates or rounds that it made, None if it failed.
    `reached` is when on the run's clock it was at the target, if it was given one.
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
    """The trials in a directory. A line that a kill has torn is as if it was not begun."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / JOURNAL
        self.trials: list[Trial] = []
        whole = b""
        if self._path.exists():
            for line in self._path.read_bytes().splitlines(keepends=True):
                if (trial := _trial(line)) is None:
                    break
                self.trials.append(trial)
                whole += line
            if whole != self._path.read_bytes():
                os.truncate(self._path, len(whole))

    def of(self, method: str) -> list[Trial]:
        """Those of a method in the order of their numbers."""
        return sorted((trial for trial in self.trials if trial.method == method), key=lambda trial: trial.number)

    def add(self, trial: Trial) -> None:
        with self._path.open("ab") as stream:
            stream.write(json.dumps(asdict(trial)).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.trials.append(trial)


def _trial(line: bytes) -> Trial | None:
    try:
        told = json.loads(line) if line.endswith(b"\n") else {}
        values = {name: tuple(each) if isinstance(each, list) else each for name, each in told["values"].items()}
        return Trial(**told | {"values": values})
    except (ValueError, TypeError, KeyError):
        return None
