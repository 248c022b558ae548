"""The result table of `python -m benchmarks.system.chaos`."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.system.rows import read_table, write_table
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


def has_row(kind: str, of: str) -> bool:
    """Return True if the table has a row with this `kind` and `of`."""
    return any((row["kind"], row["of"]) == (kind, of) for row in read_table(RESULTS))


def put_row(kind: str, of: str, tally: Tally, seconds: float) -> None:
    """Write a row, which replaces an earlier row with the same `kind` and `of`.

    Args:
        kind: The kind of disturbance.
        of: The name of the method or process.
        tally: The outcome.
        seconds: The duration of the trial.
    """
    row = {"kind": kind, "of": of, **asdict(tally), "seconds": round(seconds, 1)}
    rows = {(old["kind"], old["of"]): old for old in read_table(RESULTS)}
    write_table(RESULTS, list(row), (rows | {(kind, of): row}).values())


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
