"""Ends a run that no longer gets better."""

from collections.abc import Mapping
from typing import Literal

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import RunStart

MODES = ("max", "min")


class EarlyStopping(Callback):
    """Ends the run at the `patience`-th evaluation in a row that is not better than the best before it.

    Better is more (mode `max`) or less (`min`) by over `min_delta`, in units of `metric`; NaN never is. The metrics are
    those of evals.csv. ValueError for values that cannot be, and at the first evaluation for a metric that it lacks.
    """

    def __init__(
        self,
        metric: str = "accuracy",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Literal["max", "min"] = "max",
    ) -> None:
        if patience < 1:
            raise ValueError(f"callbacks: early-stopping got patience={patience}; takes 1 or more")
        if not min_delta >= 0:
            raise ValueError(f"callbacks: early-stopping got min_delta={min_delta}; takes 0 or more")
        if mode not in MODES:
            raise ValueError(f"callbacks: early-stopping got mode={mode!r}; takes {' or '.join(MODES)}")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._best: float | None = None
        self._worse = 0

    def on_start(self, run: RunStart) -> None:
        self._best, self._worse = None, 0

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        if self.metric not in metrics:
            raise ValueError(f"callbacks: early-stopping got metric={self.metric!r}; takes {', '.join(metrics)}")
        value = metrics[self.metric] if self.mode == "max" else -metrics[self.metric]
        if value == value and (self._best is None or value - self._best > self.min_delta):
            self._best, self._worse = value, 0
        else:
            self._worse += 1
        return self._worse >= self.patience
