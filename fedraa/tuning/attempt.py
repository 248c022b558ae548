"""One trial of a tuning: a run that is evaluated on validation data. It stops early if its metric is bad."""

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
from fedraa.errors import RunFailed, Unwritable
from fedraa.numbers import round_down
from fedraa.objectives.metric_spec import Direction
from fedraa.tuning.journal import Trial
from fedraa.tuning.space import Value
from fedraa.tuning.suggest import Judge

TENTHS = 10


@dataclass(frozen=True)
class Attempt:
    """A planned trial: its experiment, and the finished trials with which it is compared.

    `model` and `dataset` are objects that replace those of the experiment.
    """

    method: str
    number: int
    values: Mapping[str, Value]
    experiment: Experiment
    ended: tuple[Trial, ...]
    better: Direction
    model: nn.Module | None = None
    dataset: Dataset | FederatedDataset | None = None


class TrialRecorder(Callback):
    """A callback that records the metric at every tenth of the budget, and the time to the target.

    It ends the run if the metric is not finite, or if `Judge.should_stop` returns True.
    """

    def __init__(self, judge: Judge) -> None:
        self.curve: dict[int, float] = {}
        self.last = math.nan
        self.hopeless = False
        self.reached: float | None = None
        self._judge = judge

    def on_start(self, run: RunStart) -> None:
        self._limits, self._metric_spec = run.limits, run.metric_spec

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        self.last = metrics[self._metric_spec.main]
        if not math.isfinite(self.last):
            return True
        goal = self._limits.goal
        if goal is not None and goal.reached(metrics[goal.name]):
            self._record_target(t)
            return True
        reached = tenths_passed(self._limits, step, t)
        for tenth in range(1 + max(self.curve, default=0), min(reached, TENTHS - 1) + 1):
            self.curve[tenth] = self.last
            self.hopeless = self.hopeless or self._judge.should_stop(tenth, self.last)
        return self.hopeless

    def _record_target(self, t: float) -> None:
        """Record the time to the target. In `curve`, give all later tenths of the budget the last value of the metric.

        Later trials are compared with the whole curve.
        """
        if self.reached is not None:
            return
        self.reached = t
        for tenth in range(1 + max(self.curve, default=0), TENTHS):
            self.curve[tenth] = self.last


def tenths_passed(limits: Limits, step: int, t: float) -> int:
    """Return the number of whole tenths of the budget that have passed.

    Args:
        limits: The limits of the run.
        step: The step that the run has reached.
        t: The time that the run has reached.
    """
    fraction = limits.completed_fraction(step, t) or 0.0
    return round_down(TENTHS * fraction)


def run_attempt(planned: Attempt) -> Trial:
    """Run the trial and return its result. If its values or data cannot be used, the result has the state `failed`.

    Raises Unwritable if the run cannot be written, for example on a full disk. This is no result of the values.
    """
    experiment = planned.experiment
    assert experiment.out is not None
    # If an earlier process was killed during this trial, the directory exists.
    shutil.rmtree(experiment.out, ignore_errors=True)
    started = time.monotonic()
    watch = TrialRecorder(Judge(planned.ended, planned.better))
    failure = ""
    summary: dict[str, Any] = {}
    try:
        summary = run(experiment, model=planned.model, dataset=planned.dataset, callbacks=[watch]).summary
    except Unwritable as error:
        hint = "free space on the disk, and run the same command again to continue"
        raise Unwritable(error.field, error.problem, hint=hint) from error
    except (RunFailed, ValueError) as error:
        failure = str(error)
    finally:
        shutil.rmtree(experiment.out, ignore_errors=True)
    return replace(_make_trial(planned, watch, failure, time.monotonic() - started), steps=summary.get("steps"))


def run_on_node(planned: Attempt) -> Trial:
    """Run the trial in a temporary folder, because a node of a cluster cannot access the directory of the tuning."""
    with TemporaryDirectory(prefix="fedraa-trial-") as folder:
        experiment = planned.experiment.model_copy(update={"out": Path(folder) / "run"})
        return run_attempt(replace(planned, experiment=experiment))


def _make_trial(planned: Attempt, watch: TrialRecorder, failure: str, seconds: float) -> Trial:
    curve = {str(tenth): value for tenth, value in watch.curve.items()}
    common = (planned.method, planned.number, dict(planned.values))
    if failure or not math.isfinite(watch.last):
        why = failure or "its metric was not finite"
        return Trial(*common, "failed", curve=curve, why=why, seconds=round(seconds, 2))
    if watch.hopeless:
        return Trial(*common, "stopped", curve=curve, seconds=round(seconds, 2))
    return Trial(*common, "done", watch.last, curve, seconds=round(seconds, 2), reached=watch.reached)


def find_repeated(planned: Attempt, ended: Sequence[Trial]) -> Trial | None:
    """If an earlier trial had the same values, return its result under the number of the new trial.

    A second run with the same values and seed would have the same result.
    """
    for trial in ended:
        if dict(trial.values) == dict(planned.values):
            return replace(trial, number=planned.number, seconds=0.0)
    return None
