"""What a run of the race came to: read once from its directory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from benchmarks.studies.metrics import evaluations
from fedraa.rundir.history import History

QUANTITIES = {"t": 1.0, "bytes": 1e-6, "flops": 1e-9}  # of a table of evaluations, in the units that are shown


@dataclass(frozen=True, eq=False)
class Measured:
    """One run: by target when it was there, and megabytes and GFLOP till then; infinite where it was not.

    `accuracy` is that of the last evaluation on all test data, `worst` the figure of the worst client then.
    """

    entrant: str
    part: str
    seed: int
    commit: str
    times: Mapping[float, float]
    megabytes: Mapping[float, float]
    gflop: Mapping[float, float]
    accuracy: float
    worst: float
    curve: pd.DataFrame
    """Columns t and accuracy."""


@cache
def measured(entrant: str, part: str, seed: int, directory: Path, targets: tuple[float, ...]) -> Measured:
    """What the run in `directory`, which has ended, came to."""
    history = History(directory)
    spent = evaluations(history)
    reached = {level: first_at(spent, level) for level in targets}
    times, megabytes, gflop = ({level: row[name] for level, row in reached.items()} for name in QUANTITIES)
    last = history.evals.iloc[-1]
    commit = str(history.config["commit"])
    accuracy, worst, curve = float(last["accuracy"]), float(last["client_worst"]), spent[["t", "accuracy"]]
    return Measured(entrant, part, seed, commit, times, megabytes, gflop, accuracy, worst, curve)


def first_at(spent: pd.DataFrame, level: float) -> dict[str, float]:
    """What was spent till the first evaluation that is at this accuracy, in the units of QUANTITIES."""
    there = spent[spent["accuracy"] >= level]
    return {name: unit * float(there[name].iloc[0]) if len(there) else math.inf for name, unit in QUANTITIES.items()}
