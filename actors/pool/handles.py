"""Workers as their executor sees them: an actor each, the calls that are out to it, and whether it has hung."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from actors.pool.pulse import Pulse
from actors.pool.serializer import Blocks
from fedraa.messages import Evaluation, Task, Vector

START, LOAD, TRAIN, EVALUATE = "start", "load", "train", "evaluate"
FIRST = (START, LOAD)  # these come before any work, and may take as long as they like


@dataclass(eq=False)
class Call:
    """A call to a worker: to start, to train `tasks`, or for an evaluation; or to its node's host, to load."""

    kind: str
    handle: "WorkerHandle"
    ref: ray.ObjectRef[Any]
    work: float = 1.0
    tasks: list[Task] = field(default_factory=list)
    evaluation: "PendingEvaluation | None" = None


@dataclass(eq=False)
class WorkerHandle:
    """A worker actor and the calls that are out to it, the one under way first, since `since` (monotonic).

    It is ready for work once its `blocks` are known: those of its node, which `host` has read, or of all.
    """

    number: int
    group: int
    actor: Any
    pulse: Pulse
    deaths: int
    node: str = ""
    blocks: Blocks | None = None
    host: Any = None
    since: float = field(default_factory=time.monotonic)
    calls: deque[Call] = field(default_factory=deque)


@dataclass
class PendingEvaluation:
    """An evaluation on the emptiest worker that is ready; if that one dies, on another.

    `receive` takes in what has ended, and waits up to a time (monotonic); False if that has come.
    """

    receive: Callable[[float], bool]
    ref: ray.ObjectRef[Any]
    evaluation: Evaluation | None = None
    failures: int = 0

    @property
    def params(self) -> Vector:
        """A view of the object store."""
        params: Vector = ray.get(self.ref)
        return params

    def result(self, timeout: float) -> Evaluation | None:
        give_up = time.monotonic() + timeout
        while self.evaluation is None and self.receive(give_up):
            pass
        return self.evaluation


@dataclass
class HangDetector:
    """Generous bounds from what was seen: `factor` times the slowest pace so far, and never under `least` seconds.

    Work is counted in units that durations are about proportional to, per kind of work: a pace is seconds per unit.
    Of a kind of which nothing has been seen yet, `unseen` seconds are borne.
    """

    factor: float = 20.0
    least: float = 60.0
    unseen: float = 3600.0
    _paces: dict[str, float] = field(default_factory=dict)

    def saw(self, kind: str, work: float, seconds: float) -> None:
        """One piece of work took so long."""
        self._paces[kind] = max(self._paces.get(kind, 0.0), seconds / work)

    def bound(self, kind: str, work: float) -> float:
        """Seconds after which such a piece of work counts as hung."""
        if kind not in self._paces:
            return self.unseen
        return max(self.least, self.factor * self._paces[kind] * work)
