"""The rules of a run, rebuilt from its config.json alone: no data set, no model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from fedraa.costs import CostModel
from fedraa.experiment import Experiment
from fedraa.fleet import COLUMNS, Fleet
from fedraa.history import CONFIG
from fedraa.local import Solver
from fedraa.submodels.cost import Cost
from schedulers import SCHEDULERS, Scheduler, delay_bound

Widths = tuple[int, ...]


class Shape(BaseModel):
    """The cost of training one submodel shape."""

    widths: Widths
    params: int
    bytes: int
    flops: float
    memory: int


class Limits(BaseModel):
    """When the run ends, whichever comes first."""

    steps: int | None
    time: float | None
    accuracy: float | None


class Resolved(BaseModel):
    """What the data set, the model and the defaults came to; columns are per client, None is infinite."""

    samples: list[int]
    compute: list[float | None]
    downlink: list[float | None]
    uplink: list[float | None]
    latency: list[float | None]
    memory: list[float | None]
    tensors: list[str]
    parameters: int
    shared: int
    groups: dict[str, int]
    fragments: list[Widths]
    shapes: list[Shape]
    eval_every: int
    limits: Limits


class Described(BaseModel):
    """The part of config.json that rules a run."""

    experiment: dict[str, Any]
    method: dict[str, dict[str, Any]]
    resolved: Resolved


@dataclass(frozen=True)
class Rules:
    """What every line of the log must follow from."""

    experiment: Experiment
    method: dict[str, dict[str, Any]]
    resolved: Resolved

    @classmethod
    def read(cls, directory: Path) -> "Rules":
        """Raises ValueError if the configuration is not that of a run."""
        path = directory / CONFIG
        try:
            described = Described.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise ValueError(f"run: {path} is not the configuration of a run; {where}: {first['msg']}") from None
        return cls(Experiment(**described.experiment), described.method, described.resolved)

    @property
    def wall(self) -> bool:
        return self.experiment.clock == "wall"

    @cached_property
    def shapes(self) -> dict[Widths, Cost]:
        return {shape.widths: Cost(**shape.model_dump(exclude={"widths"})) for shape in self.resolved.shapes}

    @cached_property
    def costs(self) -> CostModel:
        columns = {name: np.array([_unbounded(x) for x in getattr(self.resolved, name)]) for name in COLUMNS}
        local = {name: value for name, value in self.method["local"].items() if name != "kind"}
        return CostModel(
            Fleet(**columns, relative=self.experiment.units == "relative"),
            np.array(self.resolved.samples, np.int64),
            Solver(**local),
            self.shapes.__getitem__,
            tuple(self.resolved.groups.values()),
            unit=self.experiment.time_scale if self.wall else 1.0,
        )

    def scheduler(self) -> Scheduler:
        """The scheduler over the costs as they are known now."""
        schedule = self.method["schedule"]
        table = self.costs.table(self.resolved.fragments)
        bound = schedule["delay_bound"]
        return SCHEDULERS[schedule["scheduler"]](table, delay_bound(table) if bound is None else bound)


def _unbounded(value: float | None) -> float:
    return np.inf if value is None else value
