"""The result table of `python -m benchmarks.system.chaos`."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedraa.rundir.atomic_files import replace_file
from fedraa.rundir.history import History

RESULTS = Path(__file__).parents[1] / "results" / "chaos.csv"


@dataclass(frozen=True)
class Tally:
    """The outcome of `count` disturbances.

    Attributes:
        count: The number of disturbances.
        right: The number of disturbances whose run had the right result.
        lost: The number of tasks without a commit.
        doubled: The number of tasks with two commits.
        slowest: The longest time in seconds until a frozen process was killed.
    """

    count: int
    right: int
    lost: int = 0
    doubled: int = 0
    slowest: float | None = None

    @property
    def well(self) -> bool:
        return self.right == self.count and not self.lost and not self.doubled


# The type of a function that runs a trial in an empty folder.
Trial = Callable[[Path, np.random.Generator], Tally]


@dataclass(frozen=True)
class Kind:
    """A kind of disturbance, such as killed workers.

    It has one trial for each method, or for each kind of process. All trials run inside the context manager `around`.
    """

    name: str
    trials: Mapping[str, Trial]
    around: Callable[[], AbstractContextManager[object]]


class Table:
    """A table in a CSV file to which several processes may write at the same time."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path

    def has_row(self, kind: str, of: str) -> bool:
        return any((row["kind"], row["of"]) == (kind, of) for row in self._read_rows())

    def put(self, kind: str, of: str, tally: Tally, seconds: float) -> None:
        """Write a row, which replaces an earlier row with the same `kind` and `of`.

        Args:
            kind: The kind of disturbance.
            of: The name of the method or process.
            tally: The outcome.
            seconds: The duration of the trial.
        """
        row: dict[Any, Any] = {"kind": kind, "of": of, **asdict(tally), "seconds": round(seconds, 1)}
        rows = self._read_rows()
        keys = [(old["kind"], old["of"]) for old in rows]
        if (kind, of) in keys:
            rows[keys.index((kind, of))] = row
        else:
            rows.append(row)
        with replace_file(self._path) as stream:
            stream.write(pd.DataFrame(rows).to_csv(index=False).encode())

    def _read_rows(self) -> list[dict[Any, Any]]:
        if not self._path.exists():
            return []
        return pd.read_csv(self._path).to_dict("records")


def lost_and_doubled(directory: Path, undisturbed: Path) -> tuple[int, int]:
    """Return the number of tasks without a commit and the number of tasks with two commits.

    A task without a commit counts only if it has a commit in the undisturbed run.
    """
    commits = count_commits(directory)
    expected = count_commits(undisturbed)
    return len(expected.keys() - commits.keys()), commits.total() - len(commits)


def count_commits(directory: Path) -> Counter[object]:
    """Return the number of commits of each task."""
    return Counter(line["task"] for line in History(directory).lines() if line["kind"] == "commit")
