"""The values that callbacks receive."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.objectives import MetricSpec, Target

Event = Mapping[str, object]
"""The fields of a line of events.jsonl, except `seq` and `wall`, which differ between runs with the same seed."""

_OF_THE_LINE = frozenset({"seq", "wall"})
_OF_THE_EVENT = frozenset({"kind", "step", "t"})


@dataclass(frozen=True)
class Limits:
    """The limits of a run, which ends at the first limit that it reaches. None means no limit.

    Attributes:
        steps: The number of server steps.
        time: The time on the run's clock.
        accuracy: The test accuracy, from 0 to 1.
        target: A value of another metric.
    """

    steps: int | None
    time: float | None
    accuracy: float | None
    target: Target | None = None

    @property
    def goal(self) -> Target | None:
        """The metric and its value at which the run ends; None if the run has no such limit."""
        if self.accuracy is None:
            return self.target
        return Target("accuracy", self.accuracy, "max")

    def completed_fraction(self, step: int, t: float) -> float | None:
        """Return the completed fraction (0 to 1) of the steps or of the time, whichever is larger.

        The result is None without these two limits. The run ends at the first limit that it reaches.

        Args:
            step: The number of server steps so far.
            t: The time on the run's clock.
        """
        fractions = []
        if self.steps:
            fractions.append(step / self.steps)
        if self.time:
            fractions.append(t / self.time)
        if not fractions:
            return None
        return min(1.0, max(fractions))

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Limits":
        """Return the limits from their JSON form."""
        values = dict(described)
        if values.get("target") is not None:
            values["target"] = Target(**values["target"])
        return cls(**values)

    def described(self) -> dict[str, Any]:
        """Return the JSON form of the limits."""
        return asdict(self)


@dataclass(frozen=True)
class RunStart:
    """The facts about a run that callbacks receive when it starts or resumes.

    Attributes:
        experiment: The options of the run.
        directory: The run directory.
        limits: The limits that end the run.
        resumed: True if the run continues from a checkpoint.
        metric_spec: The metrics of every evaluation, and the better direction of each.
        asynchronous: True for an asynchronous method, False for a method in rounds.
    """

    experiment: Experiment
    directory: Path
    limits: Limits
    resumed: bool
    metric_spec: MetricSpec = field(default_factory=MetricSpec)
    asynchronous: bool = True


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        step: The number of server steps so far.
        t: The time on the run's clock.
        metric: The main metric of the last finished evaluation; None before the first one.
        in_flight: The number of tasks that clients are training.
        limits: The limits that end the run.
        staleness: The moving average of the staleness over about the last ten commits.
        busy: The number of workers that train a task.
        workers: The number of workers.
        metric_name: The name of the main metric.
        commit_seconds: Real seconds that the server needed for the last commit.
    """

    step: int
    t: float
    metric: float | None
    in_flight: int
    limits: Limits
    staleness: float
    busy: int
    workers: int
    metric_name: str = "accuracy"
    commit_seconds: float = 0.0

    @property
    def completed_fraction(self) -> float:
        """The completed fraction of the run (0 to 1); 0 for a run without a limit of steps or time."""
        return self.limits.completed_fraction(self.step, self.t) or 0.0


def to_event(line: Mapping[str, object]) -> Event:
    """Convert a log line to an event, with the values that events.jsonl has."""
    event: Event = json.loads(json.dumps({name: line[name] for name in line if name not in _OF_THE_LINE}))
    return event


def read_metrics(event: Event) -> dict[str, float]:
    """Return the metrics of an evaluation event. Values that are not finite become NaN."""
    metrics = {name: value for name, value in event.items() if name not in _OF_THE_EVENT}
    return {name: nan if value is None else float(str(value)) for name, value in metrics.items()}
