"""The table of chaos: for each kind of mishap and each method or process, how many there were, how many ended well."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedraa.rundir.atomic_files import replacing
from fedraa.rundir.history import History

RESULTS = Path(__file__).parents[1] / "results" / "chaos.csv"


@dataclass(frozen=True)
class Tally:
    """What came of `count` mishaps: how many ended `right`; committed tasks that were lost, and committed twice.

    `slowest`: seconds until the last of the frozen was noticed.
    """

    count: int
    right: int
    lost: int = 0
    doubled: int = 0
    slowest: float | None = None

    @property
    def well(self) -> bool:
        return self.right == self.count and not self.lost and not self.doubled


Trial = Callable[[Path, np.random.Generator], Tally]  # in an empty folder


@dataclass(frozen=True)
class Kind:
    """Mishaps of one kind: a trial for each method or process, within `around`, a cluster perhaps."""

    name: str
    trials: Mapping[str, Trial]
    around: Callable[[], AbstractContextManager[object]]


class Table:
    """The rows of a file, written as they come, also by several at a time."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path

    def has(self, kind: str, of: str) -> bool:
        return any((row["kind"], row["of"]) == (kind, of) for row in self._rows())

    def put(self, kind: str, of: str, tally: Tally, seconds: float) -> None:
        """In place of what is there of this kind and this method or process."""
        row: dict[Any, Any] = {"kind": kind, "of": of, **asdict(tally), "seconds": round(seconds, 1)}
        rows = self._rows()
        places = [place for place, old in enumerate(rows) if (old["kind"], old["of"]) == (kind, of)]
        if places:
            rows[places[0]] = row
        else:
            rows.append(row)
        with replacing(self._path) as stream:
            stream.write(pd.DataFrame(rows).to_csv(index=False).encode())

    def _rows(self) -> list[dict[Any, Any]]:
        return pd.read_csv(self._path).to_dict("records") if self._path.exists() else []


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def lost_and_doubled(directory: Path, undisturbed: Path) -> tuple[int, int]:
    """Of a run: how many tasks that the undisturbed one committed it did not, and how many it committed twice."""
    ours, theirs = committed(directory), committed(undisturbed)
    return len(theirs.keys() - ours.keys()), ours.total() - len(ours)


def committed(directory: Path) -> Counter[object]:
    """How often each task was committed."""
    return Counter(line["task"] for line in History(directory).lines() if line["kind"] == "commit")
