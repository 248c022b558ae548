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
"""A line of events.jsonl without `seq` and `wall`, which depend on the engine and on faults."""

_OF_THE_LINE = frozenset({"seq", "wall"})
_OF_THE_EVENT = frozenset({"kind", "step", "t"})


@dataclass(frozen=True)
class Limits:
    """The limits of a run. The first limit that is reached ends the run; None means no limit."""

    steps: int | None
    time: float | None
    accuracy: float | None
    target: Target | None = None
    """A target for a metric other than accuracy."""

    @property
    def goal(self) -> Target | None:
        """The metric target that ends the run, accuracy or another."""
        if self.accuracy is None:
            return self.target
        return Target("accuracy", self.accuracy, "max")

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
    """The start or resumption of a run. A resumption repeats all earlier events first."""

    experiment: Experiment
    directory: Path
    limits: Limits
    resumed: bool
    metric_spec: MetricSpec = field(default_factory=MetricSpec)
    """The metrics of every evaluation, each with its better direction (higher or lower)."""
    asynchronous: bool = True
    """True if a step is an update of an asynchronous method, False if it is a round."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run. `staleness` is a moving mean over about ten commits.

    `accuracy` is the main metric of the last finished evaluation, which usually belongs to an earlier step. `figure` is
    the name of this metric.
    """

    step: int
    t: float
    accuracy: float | None
    in_flight: int
    limits: Limits
    staleness: float
    busy: int
    workers: int
    figure: str = "accuracy"
    mixed: float = 0.0
    """Seconds that the last commit took."""


def event_of(line: Mapping[str, object]) -> Event:
    """Return the event of a log line, with the values that a reader of the log gets."""
    event: Event = json.loads(json.dumps({name: line[name] for name in line if name not in _OF_THE_LINE}))
    return event


def metrics_of(event: Event) -> dict[str, float]:
    """Return the metrics of an evaluation. A null in the log, which holds only finite numbers, becomes NaN."""
    metrics = {name: value for name, value in event.items() if name not in _OF_THE_EVENT}
    return {name: nan if value is None else float(str(value)) for name, value in metrics.items()}
