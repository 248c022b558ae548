"""Metrics of a run, which are read from the run's directory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from fedraa.rundir.event_reader import read_events
from fedraa.rundir.history import History
from fedraa.rundir.run_stats import RunStats
from fedraa.rundir.task_timeline import read_timeline


@dataclass(frozen=True)
class Metric:
    """A metric of a run. `of` reads its value, and `better` says if lower or higher values are better, or neither.

    The value is infinite if the run did not reach the target of the metric. If `own_units` is True, the paper measures
    in other units than we do. Then only ratios between rows of our table can be compared with ratios in the paper.
    `within` has the smallest and the largest possible value.
    """

    name: str
    of: Callable[[History], float]
    better: Literal["more", "less"] | None = "more"
    form: str = ".2f"
    own_units: bool = False
    within: tuple[float, float] = (0.0, math.inf)


def read_last(column: str, factor: float = 1.0) -> Callable[[History], float]:
    """Return a function that reads a column of a run's last evaluation and multiplies it by a factor."""
    return lambda history: factor * float(history.evals[column].iloc[-1])


SHARE = (0.0, 100.0)
ACCURACY = Metric("accuracy %", read_last("accuracy", 100), within=SHARE)
CLIENT_MEAN = Metric("client accuracy %", read_last("client_mean", 100), within=SHARE)
CLIENT_STD = Metric("deviation %", read_last("client_std", 100), "less")
CLIENT_WORST = Metric("worst client %", read_last("client_worst", 100), within=SHARE)
LOSS = Metric("test loss", read_last("loss"), "less", ".3f")


def to_target(target: float | Mapping[str, float], quantity: Literal["step", "t", "bytes", "flops"]) -> Metric:
    """Return a metric: the time, bytes, steps or FLOPs until the first evaluation that reaches a target accuracy.

    Args:
        target: The target accuracy; a mapping has one per data set.
        quantity: The quantity to read, a column of `read_evaluations`.
    """
    name = {"step": "steps", "t": "time", "bytes": "MB", "flops": "GFLOP"}[quantity]
    unit = {"step": 1.0, "t": 1.0, "bytes": 1e-6, "flops": 1e-9}[quantity]

    def spent_until_target(history: History) -> float:
        spent = read_evaluations(history)
        wanted = target[Path(history.experiment.dataset).stem] if isinstance(target, Mapping) else target
        reached = spent.loc[spent["accuracy"] >= wanted, quantity]
        return unit * float(next(iter(reached), math.inf))

    label = "target" if isinstance(target, Mapping) else f"{100 * target:g} %"
    return Metric(f"{name} to {label}", spent_until_target, "less", ".4g", own_units=quantity in ("t", "step"))


def after_rounds(count: int) -> Metric:
    """Return a metric: the accuracy in the last evaluation within the first `count` rounds."""

    def accuracy(history: History) -> float:
        evals = read_evaluations(history)
        return 100 * float(evals.loc[evals["step"] <= count, "accuracy"].iloc[-1])

    return Metric(f"accuracy % after {count}", accuracy, within=SHARE)


def at_own_time(target: Mapping[str, float], multiple: float) -> Metric:
    """Return a metric: the accuracy after `multiple` times the time that the same run needed to reach a target.

    The accuracy is NaN if the run did not reach the target, or ended too early.

    Args:
        target: The target accuracy by data set.
        multiple: The factor of the time to the target.
    """

    def accuracy(history: History) -> float:
        evals = read_evaluations(history)
        wanted = target[Path(history.experiment.dataset).stem]
        own_time = float(next(iter(evals.loc[evals["accuracy"] >= wanted, "t"]), math.inf))
        end = multiple * own_time
        if end > float(evals["t"].iloc[-1]):
            return math.nan
        return 100 * float(evals.loc[evals["t"] <= end, "accuracy"].iloc[-1])

    return Metric(f"accuracy % at {multiple:g}× its time", accuracy, within=SHARE)


def read_evaluations(history: History) -> pd.DataFrame:
    """Return a row per evaluation: step, t, accuracy, and the bytes (sent and received) and FLOPs so far."""
    rows = []
    stats = RunStats()
    for event in read_events(history.directory):
        stats.add(event)
        if event["kind"] == "eval":
            sent = stats.bytes_down + stats.bytes_up
            rows.append((event["step"], event["t"], event["accuracy"], sent, stats.flops))
    return pd.DataFrame(rows, columns=["step", "t", "accuracy", "bytes", "flops"]).astype(float)


def _to_float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _staleness_quantile(history: History, share: float) -> float:
    return float(np.quantile([_to_float(line["staleness_total"]) for line in _lines_of_kind(history, "commit")], share))


STALENESS_TAIL = Metric("staleness, 99th percentile", lambda history: _staleness_quantile(history, 0.99), "less", ".1f")
STALENESS_MEDIAN = Metric("staleness, median", lambda history: _staleness_quantile(history, 0.5), "less", ".1f")


def _lines_of_kind(history: History, kind: str) -> Sequence[dict[str, object]]:
    return [line for line in history.lines() if line["kind"] == kind]


def _idle_percent(history: History) -> float:
    """Return the percentage of the run's time in which a client had no task, as the mean over all clients."""
    idle = read_timeline(history.directory).idle_fraction(history.experiment.client_count)
    assert idle is not None, "a run that has ended took time"
    # `round` removes floating-point errors of the sums, such as a tiny number instead of 0.
    return round(100 * abs(idle), 9)


IDLE = Metric("idle %", _idle_percent, "less", ".1f", within=SHARE)


def _fairness_index(history: History) -> float:
    """Return Jain's fairness index of x, the updates per fragment: (sum x)^2 / (M sum x^2), 1 if all are equal."""
    tasks = read_timeline(history.directory).tasks()
    fragments = len(history.config["resolved"]["fragments"])
    counts = np.bincount(tasks.loc[tasks["done"], "fragment"], minlength=fragments).astype(np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


FAIRNESS = Metric("fairness of updates", _fairness_index, "more", ".3f")


def _peak_memory(history: History) -> float:
    """Return the megabytes of memory that the training of the largest submodel needs, with a batch of two samples."""
    resolved = history.config["resolved"]
    parts = resolved["fragments"]
    return 1e-6 * max(float(shape["memory"]) for shape in resolved["shapes"] if shape["widths"] in parts)


PEAK_MEMORY = Metric("device MB", _peak_memory, "less", ".3g")


def _reduce_rounds(column: str, of: Callable[[Sequence[float]], float]) -> Callable[[History], float]:
    return lambda history: of([_to_float(line[column]) for line in _lines_of_kind(history, "round")])


def _least_trained(history: History) -> float:
    """Return the percentage of coordinates that at least one client trained, in the round in which it is smallest."""
    uncovered = max(_to_float(line["uncovered"]) for line in _lines_of_kind(history, "round"))
    return 100 * (1 - uncovered / float(history.config["resolved"]["parameters"]))


# In each round, count for each coordinate the clients that trained it. The metric is the smallest of these counts over
# all rounds, without the counts that are 0. The papers call it Gamma* or C*.
LEAST_COVERAGE = Metric("least coverage", _reduce_rounds("coverage_min_trained", min), None, ".1f")
# In each round, take the percentage of coordinates that at least one client trained. The metric is the smallest
# percentage over all rounds. The papers call it S*.
LEAST_TRAINED = Metric("least trained %", _least_trained, None, ".1f", within=SHARE)
# The maximum number of consecutive rounds in which no client trained a coordinate.
LONGEST_UNTRAINED = Metric("longest untrained", _reduce_rounds("longest_untrained", max), None, ".1f")


def _longest_spell(history: History) -> float:
    """Return the largest number of consecutive rounds in which some client did not train some region.

    A region is one of the parts into which the method divides the model. The fragment number of a task in the log is a
    bit mask of the regions that the task trains.
    """
    parts = int(history.config["method"]["submodel"]["parts"])
    all_regions = (1 << parts) - 1
    spells = np.zeros((history.experiment.client_count, parts), int)
    trained = np.zeros_like(spells, bool)
    longest = 0
    for line in read_events(history.directory):
        if line["kind"] == "dispatch":
            # The tasks of round 0 have the bit mask 0, but train all regions.
            bit_mask = int(line["fragment"]) or all_regions
            trained[line["client"]] = bit_mask >> np.arange(parts) & 1
        elif line["kind"] == "round":
            spells = np.where(trained, 0, spells + 1)
            longest = max(longest, int(spells.max()))
            trained[:] = False
    return float(longest)


# The maximum of tau_q in Assumption 6 of the RAM-Fed paper.
LONGEST_SPELL = Metric("longest untrained by a client", _longest_spell, None, ".1f")


def sent_back(which: Literal["least", "most"]) -> Metric:
    """Return a metric: the smallest or largest upload of a client, in thousands of float32 parameters."""
    pick = {"least": min, "most": max}[which]
    return Metric(
        f"thousand parameters, {which}",
        lambda history: pick(_to_float(line["bytes_up"]) for line in _lines_of_kind(history, "commit")) / 4e3,
        "less",
        ".1f",
    )


def _flops_per_sample(history: History) -> float:
    """Return the training cost per sample in millions of FLOPs, for tasks with a fixed number of steps."""
    experiment = history.experiment
    assert isinstance(experiment.local_steps, int)
    commits = _lines_of_kind(history, "commit")
    flops = sum(_to_float(line["flops"]) for line in commits)
    return 1e-6 * flops / (len(commits) * experiment.local_steps * experiment.batch_size)


FLOPS_PER_SAMPLE = Metric("MFLOP a sample", _flops_per_sample, "less", ".1f")
