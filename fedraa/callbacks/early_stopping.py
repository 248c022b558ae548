"""Ends a run that no longer gets better."""

from collections.abc import Mapping
from typing import Literal

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import RunStart
from fedraa.objectives import Figures

MODES = ("max", "min")


class EarlyStopping(Callback):
    """Ends the run at the `patience`-th evaluation in a row that is not better than the best before it.

    Better is more (mode `max`) or less (`min`) by over `min_delta`, in units of `metric`; NaN never is. The metrics are
    those of evals.csv; by default it is the one that the objective is judged by (accuracy, of a classification), and
    the mode the way in which it is better. ValueError for values that cannot be, and at the first evaluation for a
    metric that it lacks.
    """

    def __init__(
        self,
        metric: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: Literal["max", "min"] | None = None,
    ) -> None:
        if patience < 1:
            raise ValueError(f"callbacks: early-stopping got patience={patience}; takes 1 or more")
        if not min_delta >= 0:
            raise ValueError(f"callbacks: early-stopping got min_delta={min_delta}; takes 0 or more")
        if mode not in (None, *MODES):
            raise ValueError(f"callbacks: early-stopping got mode={mode!r}; takes {' or '.join(MODES)}")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._best: float | None = None
        self._figures = Figures()
        self._worse = 0

    def on_start(self, run: RunStart) -> None:
        self._best, self._worse, self._figures = None, 0, run.figures

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        name = self._figures.main if self.metric is None else self.metric
        if name not in metrics:
            raise ValueError(f"callbacks: early-stopping got metric={name!r}; takes {', '.join(metrics)}")
        value = metrics[name] if (self.mode or self._figures.better(name)) == "max" else -metrics[name]
        if value == value and (self._best is None or value - self._best > self.min_delta):
            self._best, self._worse = value, 0
        else:
            self._worse += 1
        return self._worse >= self.patience
