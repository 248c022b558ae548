"""The results of one run of the study `race`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.studies.metrics import read_evaluations, value_at_accuracy
from benchmarks.studies.study import FLEETS
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History

# In `identifying_fields`, this text replaces the folder of the datasets.
DATA = "DATA"
SPENT = ("t", "accuracy", "bytes", "flops")
# The columns of evaluations that pages show. Each value is multiplied by a factor to get the page's unit.
QUANTITIES = {"t": 1.0, "bytes": 1e-6, "flops": 1e-9}


@dataclass(frozen=True, eq=False)
class Measured:
    """The results of one run.

    Attributes:
        entrant: The entrant's name.
        part: The part of the study.
        seed: The seed.
        commit: The commit of the code.
        fields: The fields that identify the experiment.
        method: The method with all values, as in config.json.
        worst: The final metric of the worst client.
        spent: A row per evaluation: t, accuracy, and the bytes and FLOPs so far.
        targets: The target accuracies, from 0 to 1.
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
        """The accuracy in the last evaluation."""
        return float(self.spent["accuracy"].iloc[-1])

    @cached_property
    def times(self) -> dict[float, float]:
        return self._cost_by_target("t")

    @cached_property
    def megabytes(self) -> dict[float, float]:
        return self._cost_by_target("bytes")

    @cached_property
    def gflop(self) -> dict[float, float]:
        return self._cost_by_target("flops")

    def _cost_by_target(self, name: str) -> dict[float, float]:
        return {level: cost_to_accuracy(self.spent, name, level) for level in self.targets}


@cache
def measure_run(entrant: str, part: str, experiment: Experiment, targets: tuple[float, ...]) -> Measured:
    """Read the results of an ended run from its directory.

    Args:
        entrant: The entrant's name.
        part: The part of the study to which the run belongs.
        experiment: The experiment.
        targets: The target accuracies.
    """
    assert experiment.out is not None
    history = History(experiment.out)
    return Measured(
        entrant=entrant,
        part=part,
        seed=experiment.seed,
        commit=str(history.config["commit"]),
        fields=identifying_fields(experiment),
        method=history.config["method"],
        worst=float(history.evals["client_worst"].iloc[-1]),
        spent=read_evaluations(history)[list(SPENT)],
        targets=targets,
    )


def identifying_fields(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment's fields that differ from the defaults, without the seed and local folders."""
    excluded = {"out", "seed", "engine", "quiet", "data_dir"}
    fields = experiment.model_dump(mode="json", exclude_defaults=True, exclude=excluded)
    folders = {FLEETS: FLEETS.name}
    if experiment.dataset.endswith(".npz"):
        folders[Path(experiment.dataset).parent] = DATA
    elif experiment.data_dir:
        folders[experiment.data_dir] = DATA
    for name, value in fields.items():
        for folder, placeholder in folders.items():
            if isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(folder):
                fields[name] = str(Path(placeholder) / Path(value).relative_to(folder))
    return fields


def cost_to_accuracy(spent: pd.DataFrame, name: str, level: float) -> float:
    """Return a column of `QUANTITIES` at the first evaluation with this accuracy; infinite without one."""
    return QUANTITIES[name] * value_at_accuracy(spent, name, level)
