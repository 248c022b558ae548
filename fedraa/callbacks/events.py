"""What callbacks are shown of a run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.objectives import Figures, Target

Event = Mapping[str, object]
"""A line of events.jsonl without `seq` and `wall`: what is the same whichever engine ran and whatever went wrong."""

_OF_THE_LINE = frozenset({"seq", "wall"})
_OF_THE_EVENT = frozenset({"kind", "step", "t"})


@dataclass(frozen=True)
class Limits:
    """When a run ends, whichever comes first; None is no limit."""

    steps: int | None
    time: float | None
    accuracy: float | None
    target: Target | None = None
    """Another figure than the accuracy, and where it is good enough."""

    @property
    def goal(self) -> Target | None:
        """The figure that ends the run, whichever it is."""
        return self.target if self.accuracy is None else Target("accuracy", self.accuracy, "max")

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Limits":
        """What `described` has given."""
        target = described.get("target")
        return cls(**{**described, "target": None if target is None else Target(**target)})

    def described(self) -> dict[str, Any]:
        """As JSON; a target is named only where there is one, as older versions do not know it."""
        return {name: value for name, value in asdict(self).items() if name != "target" or value is not None}


@dataclass(frozen=True)
class RunStart:
    """A run that begins, or is gone on with: then all events that it has had are told again, first of all."""

    experiment: Experiment
    directory: Path
    limits: Limits
    resumed: bool
    figures: Figures = field(default_factory=Figures)
    """What every evaluation gives, and which way it is better."""
    asynchronous: bool = True
    """Whether steps are updates of an asynchronous method, or rounds."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; `staleness` is a mean that forgets, over about ten commits.

    `accuracy` is that of the last evaluation which has ended, of an earlier step as a rule; with another objective the
    figure that it is judged by, `figure`.
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
    """The event in a line of the log, with the values that a reader of the log gets."""
    event: Event = json.loads(json.dumps({name: line[name] for name in line if name not in _OF_THE_LINE}))
    return event


def metrics_of(event: Event) -> dict[str, float]:
    """The figures of an evaluation; those that are null in the log, which has finite numbers alone, are NaN."""
    return {
        name: nan if value is None else float(str(value)) for name, value in event.items() if name not in _OF_THE_EVENT
    }
