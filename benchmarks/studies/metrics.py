"""Metrics that are computed from a run's directory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedraa.rundir.event_reader import read_events
from fedraa.rundir.history import History
from fedraa.rundir.run_stats import RunStats
from fedraa.rundir.task_timeline import read_timeline


@dataclass(frozen=True)
class Metric:
    """A metric of a run.

    Attributes:
        name: The heading in tables.
        of: Returns the value for a run; infinite if the run did not reach the metric's target.
        better: Whether higher ("more") or lower ("less") values are better; None if neither is.
        form: The format of the value.
        own_units: True if our units differ from the paper's. Then only ratios of values can be compared with the paper.
        within: The smallest and the largest possible value.
        target: The accuracy, from 0 to 1, that the metric waits for, or one per data set; None if there is none.
        fixed: True if the value hardly depends on the seed, so that a run with one seed can decide a claim.
    """

    name: str
    of: Callable[[History], float]
    better: Literal["more", "less"] | None = "more"
    form: str = ".2f"
    own_units: bool = False
    within: tuple[float, float] = (0.0, math.inf)
    target: float | Mapping[str, float] | None = None
    fixed: bool = False

    def target_for(self, dataset: str) -> float | None:
        """Return the target accuracy on a data set, from 0 to 1."""
        if isinstance(self.target, Mapping):
            return self.target[dataset]
        return self.target


def read_last(column: str, factor: float = 1.0) -> Callable[[History], float]:
    """Return a function that reads `column` of a run's last evaluation and multiplies it by `factor`."""
    return lambda history: factor * float(history.evals[column].iloc[-1])


def average_late(column: str, factor: float = 1.0) -> Callable[[History], float]:
    """Return a function that multiplies `factor` by the mean of `column` over the last quarter of a run's evaluations.

    The number of evaluations is rounded up, so that there is at least one.
    """

    def average(history: History) -> float:
        values = history.evals[column]
        return factor * float(values.iloc[-math.ceil(len(values) / 4) :].mean())

    return average


PERCENT = (0.0, 100.0)
ACCURACY = Metric("accuracy %", read_last("accuracy", 100), within=PERCENT)
CLIENT_MEAN = Metric("client accuracy %", read_last("client_mean", 100), within=PERCENT)
CLIENT_STD = Metric("deviation %", read_last("client_std", 100), "less")
LATE_STD = Metric("deviation %, mean of the last quarter", average_late("client_std", 100), "less")
CLIENT_WORST = Metric("worst client %", read_last("client_worst", 100), within=PERCENT)
LOSS = Metric("test loss", read_last("loss"), "less", ".3f")


def to_target(target: float | Mapping[str, float], quantity: Literal["step", "t", "bytes", "flops"]) -> Metric:
    """Return a metric: the time, bytes, steps or FLOPs until an evaluation reaches the target accuracy.

    Args:
        target: The target accuracy, from 0 to 1, or one per data set.
        quantity: The column of `read_evaluations` to read.
    """
    names_and_units = {"step": ("steps", 1.0), "t": ("time", 1.0), "bytes": ("MB", 1e-6), "flops": ("GFLOP", 1e-9)}
    name, unit = names_and_units[quantity]

    def spent_until_target(history: History) -> float:
        return unit * value_at_accuracy(read_evaluations(history), quantity, _target_of(history, target))

    label = "target" if isinstance(target, Mapping) else f"{100 * target:g} %"
    own_units = quantity in ("t", "step")
    return Metric(f"{name} to {label}", spent_until_target, "less", ".4g", own_units=own_units, target=target)


def after_rounds(count: int) -> Metric:
    """Return a metric: the accuracy in the last evaluation within the first `count` rounds."""

    def accuracy(history: History) -> float:
        evals = read_evaluations(history)
        return 100 * float(evals.loc[evals["step"] <= count, "accuracy"].iloc[-1])

    return Metric(f"accuracy % after {count}", accuracy, within=PERCENT)


def at_own_time(target: Mapping[str, float], multiple: float) -> Metric:
    """Return a metric: a run's accuracy at the time `multiple` * t. Here t is the time of reaching the target.

    `target` has the target accuracy, from 0 to 1, by data set. The metric is NaN if the run did not reach the target,
    or ended before the time `multiple` * t.
    """

    def accuracy(history: History) -> float:
        evals = read_evaluations(history)
        end = multiple * value_at_accuracy(evals, "t", _target_of(history, target))
        if end > float(evals["t"].iloc[-1]):
            return math.nan
        return 100 * float(evals.loc[evals["t"] <= end, "accuracy"].iloc[-1])

    return Metric(f"accuracy % at {multiple:g}× its time", accuracy, within=PERCENT, target=target)


def _target_of(history: History, target: float | Mapping[str, float]) -> float:
    """Return the target accuracy of a run: `target`, or its value for the run's data set."""
    if isinstance(target, Mapping):
        return target[Path(history.experiment.dataset).stem]
    return target


def value_at_accuracy(evaluations: pd.DataFrame, column: str, accuracy: float) -> float:
    """Return the value of a column in the first evaluation with this accuracy or more; infinite without one."""
    reached = evaluations.loc[evaluations["accuracy"] >= accuracy, column]
    return float(next(iter(reached), math.inf))


def read_evaluations(history: History) -> pd.DataFrame:
    """Return a row per evaluation: step, t, accuracy, and the bytes and FLOPs used until then.

    The bytes include both directions. Evaluations run in parallel with training, so an `eval` line can be in the log
    after tasks of later steps. These tasks do not count.
    """
    every = history.config["resolved"]["eval_every"]
    rows = []
    stats = RunStats()
    spent = _SpentByStep()
    for event in read_events(history.directory):
        now = (stats.bytes_down + stats.bytes_up, stats.flops)
        spent.add(event, now)
        stats.add(event)
        if event["kind"] == "eval":
            # An evaluation of another step is made only because the run ended. It is never late.
            used = spent.before(event["step"], now) if event["step"] % every == 0 else now
            rows.append((event["step"], event["t"], event["accuracy"], *used))
    return pd.DataFrame(rows, columns=["step", "t", "accuracy", "bytes", "flops"]).astype(float)


class _SpentByStep:
    """The bytes and FLOPs of a run before each server step."""

    def __init__(self) -> None:
        # The totals before the first task of each step was sent, and before the step's first update was applied.
        self._spent: list[tuple[int, float]] = []
        # The step at which each task in flight was sent.
        self._sent_at: dict[int, int] = {}

    def add(self, event: Mapping[str, Any], spent: tuple[int, float]) -> None:
        """Add an event. `spent` has the bytes and FLOPs of all earlier events."""
        step = -1
        match event["kind"]:
            case "dispatch":
                step = event["step"]
                self._sent_at[event["task"]] = step
            case "commit":
                step = self._sent_at.pop(event["task"]) + event["staleness_total"]
            case "drop" | "lost":
                del self._sent_at[event["task"]]
        missing = step + 1 - len(self._spent)
        self._spent.extend([spent] * missing)

    def before(self, step: int, now: tuple[int, float]) -> tuple[int, float]:
        """Return the bytes and FLOPs of all events before a step. They are `now` if the step has no events yet."""
        if step < len(self._spent):
            return self._spent[step]
        return now


def _staleness_quantile(history: History, share: float) -> float:
    return float(np.quantile([line["staleness_total"] for line in _lines_of_kind(history, "commit")], share))


STALENESS_TAIL = Metric("staleness, 99th percentile", lambda history: _staleness_quantile(history, 0.99), "less", ".1f")
STALENESS_MEDIAN = Metric("staleness, median", lambda history: _staleness_quantile(history, 0.5), "less", ".1f")


def _lines_of_kind(history: History, kind: str) -> list[dict[str, Any]]:
    return [line for line in history.lines() if line["kind"] == kind]


def _idle_percent(history: History) -> float:
    """Return the percentage of the run's time without a task, averaged over the clients."""
    idle = read_timeline(history.directory).idle_fraction(history.experiment.client_count)
    assert idle is not None, "a run that has ended took time"
    # Floating-point sums have tiny errors, which rounding removes.
    return round(100 * abs(idle), 9)


IDLE = Metric("idle %", _idle_percent, "less", ".1f", within=PERCENT)


def _fairness_index(history: History) -> float:
    """Return Jain's fairness index of the M fragments: (sum x)^2 / (M sum x^2). x counts a fragment's updates."""
    tasks = read_timeline(history.directory).tasks()
    fragments = len(history.config["resolved"]["fragments"])
    counts = np.bincount(tasks.loc[tasks["done"], "fragment"], minlength=fragments).astype(np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


FAIRNESS = Metric("fairness of updates", _fairness_index, "more", ".3f")


def _peak_memory(history: History) -> float:
    """Return the megabytes that training the largest submodel needs, with a batch of two samples."""
    resolved = history.config["resolved"]
    parts = resolved["fragments"]
    return 1e-6 * max(float(shape["memory"]) for shape in resolved["shapes"] if shape["widths"] in parts)


PEAK_MEMORY = Metric("device MB", _peak_memory, "less", ".3g")


def _reduce_rounds(column: str, of: Callable[[Sequence[float]], float]) -> Callable[[History], float]:
    return lambda history: float(of([line[column] for line in _lines_of_kind(history, "round")]))


def _least_trained(history: History) -> float:
    """Return the percentage of coordinates that clients trained in the round with the fewest trained coordinates."""
    uncovered: float = max(line["uncovered"] for line in _lines_of_kind(history, "round"))
    return 100 * (1 - uncovered / float(history.config["resolved"]["parameters"]))


# The smallest number of clients that trained the same coordinate in a round. Coordinates that no client trained do not
# count. The papers call this number Gamma* or C*.
LEAST_COVERAGE = Metric("least coverage", _reduce_rounds("coverage_min_trained", min), None, ".1f")
# The papers call the smallest percentage of trained coordinates S*.
LEAST_TRAINED = Metric("least trained %", _least_trained, None, ".1f", within=PERCENT)
# For each coordinate: the longest sequence of rounds in which no client trained it. The metric is the
# maximum over the coordinates.
LONGEST_UNTRAINED = Metric("longest untrained", _reduce_rounds("longest_untrained", max), None, ".1f")


def _longest_untrained_by_client(history: History) -> float:
    """Return the longest time, in rounds, in which a client did not train one of the model's parts.

    The method divides the model into parts. In the log, the fragment number of a task is a bit mask of its parts.
    """
    parts = int(history.config["method"]["submodel"]["parts"])
    all_parts = (1 << parts) - 1
    untrained_rounds = np.zeros((history.experiment.client_count, parts), int)
    trained = np.zeros_like(untrained_rounds, bool)
    longest = 0
    for line in read_events(history.directory):
        if line["kind"] == "dispatch":
            # All tasks of round 0 train all parts. The log gives them the bit mask 0.
            bit_mask = int(line["fragment"]) or all_parts
            trained[line["client"]] = bit_mask >> np.arange(parts) & 1
        elif line["kind"] == "round":
            untrained_rounds = np.where(trained, 0, untrained_rounds + 1)
            longest = max(longest, int(untrained_rounds.max()))
            trained[:] = False
    return float(longest)


# In Assumption 6 of the RAM-Fed paper, this number is the maximum of tau_q.
LONGEST_UNTRAINED_BY_CLIENT = Metric("longest untrained by a client", _longest_untrained_by_client, None, ".1f")


def upload_size(which: Literal["least", "most"]) -> Metric:
    """Return a metric: the smallest or largest upload of a client, in thousands of float32 parameters."""
    pick = {"least": min, "most": max}[which]
    return Metric(
        f"thousand parameters, {which}",
        lambda history: pick(line["bytes_up"] for line in _lines_of_kind(history, "commit")) / 4e3,
        "less",
        ".1f",
        fixed=True,
    )


def _flops_per_sample(history: History) -> float:
    """Return the millions of FLOPs per training sample. Tasks must have a fixed number of steps."""
    experiment = history.experiment
    assert isinstance(experiment.local_steps, int)
    batch_size: int = history.config["method"]["local"]["batch_size"]
    commits = _lines_of_kind(history, "commit")
    flops: float = sum(line["flops"] for line in commits)
    return 1e-6 * flops / (len(commits) * experiment.local_steps * batch_size)


FLOPS_PER_SAMPLE = Metric("MFLOP a sample", _flops_per_sample, "less", ".1f", fixed=True)
