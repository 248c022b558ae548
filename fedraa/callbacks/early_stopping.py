"""End a run when a metric stops improving."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Literal

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import RunStart
from fedraa.components.field_checks import check_component_fields
from fedraa.errors import InputError
from fedraa.numbers import Count, NotNegative
from fedraa.objectives import MetricSpec


@dataclass(eq=False)
class EarlyStopping(Callback):
    """A callback that ends a run when a metric has not improved for `patience` consecutive evaluations.

    NaN is never an improvement. If the run does not compute the metric, `on_start` raises InputError.

    Attributes:
        metric: The name of a column of evals.csv; None for the objective's main metric (accuracy for a classification).
        patience: The number of consecutive evaluations without an improvement after which the run ends.
        min_delta: A value is an improvement if it is better than the best earlier value by more than this difference.
        mode: `max` if larger values are better, `min` if smaller values are better; None for the metric's own
            direction.
    """

    metric: str | None = None
    patience: Count = 5
    min_delta: NotNegative = 0.0
    mode: Literal["max", "min"] | None = None
    _best: float | None = field(default=None, init=False, repr=False)
    _worse: int = field(default=0, init=False, repr=False)
    _metric_spec: MetricSpec = field(default_factory=MetricSpec, init=False, repr=False)

    def __post_init__(self) -> None:
        check_component_fields(self, "callbacks")

    def on_start(self, run: RunStart) -> None:
        if self.metric is not None and self.metric not in run.metric_spec.columns:
            raise InputError(
                "callbacks.metric", got=self.metric, expected=f"one of {', '.join(run.metric_spec.columns)}"
            )
        self._best = None
        self._worse = 0
        self._metric_spec = run.metric_spec

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        name = self.metric or self._metric_spec.main
        value = metrics[name]
        if (self.mode or self._metric_spec.better(name)) == "min":
            value = -value
        if not isnan(value) and (self._best is None or value - self._best > self.min_delta):
            self._best = value
            self._worse = 0
        else:
            self._worse += 1
        return self._worse >= self.patience
