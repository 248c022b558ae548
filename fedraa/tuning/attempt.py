"""One trial: a run on validation data. It is stopped early if it is hopeless, and only its metrics are kept."""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from fedraa.api import run
from fedraa.callbacks import Callback, RunStart
from fedraa.callbacks.events import Limits
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset, FederatedDataset
from fedraa.errors import RunFailed
from fedraa.tuning.journal import Trial
from fedraa.tuning.space import Value
from fedraa.tuning.suggest import Direction, Judge

TENTHS = 10


@dataclass(frozen=True)
class Attempt:
    """A planned trial: the experiment with its directory, and the finished trials with which it is compared.

    `model` and `dataset` are objects that replace the named ones of the experiment.
    """

    method: str
    number: int
    values: Mapping[str, Value]
    experiment: Experiment
    ended: tuple[Trial, ...]
    better: Direction
    model: nn.Module | None = None
    dataset: Dataset | FederatedDataset | None = None


class Watch(Callback):
    """A callback that records the metric at every tenth of the budget, and the time of reaching the target.

    It ends the run if the metric is hopeless or not finite.
    """

    def __init__(self, judge: Judge) -> None:
        self.curve: dict[int, float] = {}
        self.last = math.nan
        self.hopeless = False
        self.reached: float | None = None
        self._judge = judge

    def on_start(self, run: RunStart) -> None:
        self._limits, self._figures = run.limits, run.figures

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        self.last = metrics[self._figures.main]
        if not math.isfinite(self.last):
            return True
        goal = self._limits.goal
        if goal is not None and goal.reached(metrics[goal.name]):
            self._at_target(t)
            return True
        reached = tenths(self._limits, step, t)
        for tenth in range(1 + max(self.curve, default=0), min(reached, TENTHS - 1) + 1):
            self.curve[tenth] = self.last
            self.hopeless = self.hopeless or self._judge.hopeless(tenth, self.last)
        return self.hopeless

    def _at_target(self, t: float) -> None:
        """Record the time of the target and fill the rest of the curve with the final value.

        Later trials are compared with the whole curve.
        """
        if self.reached is not None:
            return
        self.reached = t
        for tenth in range(1 + max(self.curve, default=0), TENTHS):
            self.curve[tenth] = self.last


def tenths(limits: Limits, step: int, t: float) -> int:
    """Return the number of whole tenths of the budget that have passed.

    Args:
        limits: The limits of the run.
        step: The step that it has reached.
        t: The time that it has reached.
    """
    shares = [step / limits.steps if limits.steps else 0.0, t / limits.time if limits.time else 0.0]
    return int(TENTHS * max(shares) + 1e-9)


def attempt(asked: Attempt) -> Trial:
    """Run the trial. If its values or data are impossible, the result is a trial that failed."""
    experiment = asked.experiment
    assert experiment.out is not None
    # A killed tuning may have left this directory behind.
    shutil.rmtree(experiment.out, ignore_errors=True)
    started, watch = time.monotonic(), Watch(Judge(asked.ended, asked.better))
    failure, summary = "", dict[str, Any]()
    try:
        summary = run(experiment, model=asked.model, dataset=asked.dataset, callbacks=[watch]).summary
    except (RunFailed, ValueError) as error:
        failure = str(error)
    shutil.rmtree(experiment.out, ignore_errors=True)
    return replace(_trial(asked, watch, failure, time.monotonic() - started), steps=summary.get("steps"))


def attempt_elsewhere(asked: Attempt) -> Trial:
    """Run the trial on a node without access to the tuning's directory."""
    with TemporaryDirectory(prefix="fedraa-trial-") as folder:
        out = asked.experiment.model_copy(update={"out": Path(folder) / "run"})
        return attempt(replace(asked, experiment=out))


def _trial(asked: Attempt, watch: Watch, failure: str, seconds: float) -> Trial:
    curve = {str(tenth): value for tenth, value in watch.curve.items()}
    common = (asked.method, asked.number, dict(asked.values))
    if failure or not math.isfinite(watch.last):
        why = failure or "its figure was no number any more"
        return Trial(*common, "failed", curve=curve, why=why, seconds=round(seconds, 2))
    if watch.hopeless:
        return Trial(*common, "stopped", curve=curve, seconds=round(seconds, 2))
    return Trial(*common, "done", watch.last, curve, seconds=round(seconds, 2), reached=watch.reached)


def repeated(asked: Attempt, ended: Sequence[Trial]) -> Trial | None:
    """Return the result of an earlier trial with the same values; None without one.

    A run with the same seed gives the same result.
    """
    for trial in ended:
        if dict(trial.values) == dict(asked.values):
            return replace(trial, number=asked.number, seconds=0.0)
    return None
