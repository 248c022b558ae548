"""What a run of the race came to: read once from its directory, or from the record of an earlier race."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.studies.metrics import evaluations
from benchmarks.studies.race.settings import FLEETS
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History

DATA = "DATA"  # the folder of the datasets, wherever it is
SPENT = ("t", "accuracy", "bytes", "flops")
QUANTITIES = {"t": 1.0, "bytes": 1e-6, "flops": 1e-9}  # of a table of evaluations, in the units that are shown


@dataclass(frozen=True, eq=False)
class Measured:
    """One run: by target when it was there, and megabytes and GFLOP till then; infinite where it was not.

    `fields` are those by which its experiment is known again, `method` is what its method came to, as config.json
    describes it; `worst` is the figure of the worst client in the end; `spent` has a row per evaluation: t, accuracy,
    and bytes and flops till then.
    """

    entrant: str
    part: str
    seed: int
    commit: str
    fields: Mapping[str, Any]
    method: Mapping[str, Any]
    worst: float
    spent: pd.DataFrame
    targets: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """That of the last evaluation, on all test data."""
        return float(self.spent["accuracy"].iloc[-1])

    @cached_property
    def times(self) -> dict[float, float]:
        return self._till("t")

    @cached_property
    def megabytes(self) -> dict[float, float]:
        return self._till("bytes")

    @cached_property
    def gflop(self) -> dict[float, float]:
        return self._till("flops")

    def _till(self, name: str) -> dict[float, float]:
        return {level: first_at(self.spent, level)[name] for level in self.targets}


@cache
def measured(entrant: str, part: str, experiment: Experiment, targets: tuple[float, ...]) -> Measured:
    """What the run of this experiment, which has ended in its directory, came to."""
    assert experiment.out is not None
    history = History(experiment.out)
    worst, spent = float(history.evals["client_worst"].iloc[-1]), evaluations(history)[list(SPENT)]
    about = (str(history.config["commit"]), known_by(experiment), history.config["method"])
    return Measured(entrant, part, experiment.seed, *about, worst, spent, targets)


def known_by(experiment: Experiment) -> dict[str, Any]:
    """The fields that are not the defaults, but the seed, with no folder of this machine in them."""
    elsewhere = {"out", "seed", "engine", "quiet", "data_dir"}
    said = experiment.model_dump(mode="json", exclude_defaults=True, exclude=elsewhere)
    data = Path(experiment.dataset).parent if experiment.dataset.endswith(".npz") else experiment.data_dir
    folders = {FLEETS: FLEETS.name} | ({data: DATA} if data else {})
    for name, value in said.items():
        for folder, told in folders.items():
            if isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(folder):
                said[name] = str(Path(told) / Path(value).relative_to(folder))
    return said


def first_at(spent: pd.DataFrame, level: float) -> dict[str, float]:
    """What was spent till the first evaluation that is at this accuracy, in the units of QUANTITIES."""
    there = spent[spent["accuracy"] >= level]
    return {name: unit * float(there[name].iloc[0]) if len(there) else math.inf for name, unit in QUANTITIES.items()}
