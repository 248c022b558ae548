"""The executor's records of workers: the actor, its outstanding calls, and the detection of hangs."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError

from actors import runtime
from actors.pool.pulse import LivenessProbe
from actors.pool.serializer import Blocks
from actors.ray_versions import AnyRef
from fedraa.messages import Evaluation, State, Task, Vector

START = "start"
LOAD = "load"
TRAIN = "train"
EVALUATE = "evaluate"
# Calls that come before any work. They have no time limit.
STARTUP_CALLS = (START, LOAD)


@dataclass(eq=False)
class Call:
    """An outstanding call: a worker's start, training of `tasks` or evaluation, or the loading of its node's data."""

    kind: str
    handle: "WorkerHandle"
    ref: AnyRef
    work: float = 1.0
    tasks: list[Task] = field(default_factory=list)
    evaluation: "PendingEvaluation | None" = None


@dataclass(eq=False)
class WorkerHandle:
    """A worker actor and its outstanding calls; the first one has been running since `since` (monotonic).

    The worker is ready for work when its `blocks` are known: the blocks that its node's `host` has read, or those of
    the whole run.
    """

    number: int
    group: int
    actor: Any
    pulse: LivenessProbe
    deaths: int
    node: str = ""
    blocks: Blocks | None = None
    host: Any = None
    since: float = 0.0
    calls: deque[Call] = field(default_factory=deque)


def describe_death(call: Call, error: RayError) -> str:
    """Return the cause of a worker's death. A worker that does not answer a repeated call counts as dead."""
    if isinstance(error, ActorUnavailableError):
        return "worker could not be reached"
    if call.kind not in STARTUP_CALLS:
        return "worker died"
    cause = getattr(error, "cause", error)
    return f"worker did not start: {(str(cause).strip().splitlines() or [''])[-1].strip()}"


@dataclass
class PendingEvaluation:
    """An evaluation on the ready worker with the fewest calls. If that worker dies, another one takes it.

    `receive` handles one ended call and waits until a time (monotonic). It returns False if that time has passed.
    """

    receive: Callable[[float], bool]
    ref: AnyRef
    kept_ref: AnyRef
    evaluation: Evaluation | None = None
    failures: int = 0

    @property
    def params(self) -> Vector:
        """Return a view of the parameters in the object store."""
        params: Vector = runtime.get(self.ref)
        return params

    @property
    def kept(self) -> State:
        """Return the kept values of clients with personal models, with views of arrays in the object store."""
        kept: State = runtime.get(self.kept_ref)
        return kept

    def result(self, timeout: float) -> Evaluation | None:
        give_up = runtime.monotonic() + timeout
        while self.evaluation is None and self.receive(give_up):
            pass
        return self.evaluation


@dataclass
class HangDetector:
    """Time limits that follow from observations: `factor` times the slowest pace so far, but at least `min_seconds`.

    Work is measured in units to which durations are roughly proportional, per kind of work. A pace is seconds per unit.
    A kind without observations may take `unseen` seconds.
    """

    factor: float = 20.0
    min_seconds: float = 60.0
    unseen: float = 3600.0
    _paces: dict[str, float] = field(default_factory=dict)

    def record_duration(self, kind: str, work: float, seconds: float) -> None:
        """Record the duration of one piece of work.

        Args:
            kind: The kind of work.
            work: The amount of work, in units to which durations are roughly proportional.
            seconds: The duration of the work.
        """
        self._paces[kind] = max(self._paces.get(kind, 0.0), seconds / work)

    def bound(self, kind: str, work: float) -> float:
        """Return the seconds after which this piece of work counts as hung."""
        if kind not in self._paces:
            return self.unseen
        return max(self.min_seconds, self.factor * self._paces[kind] * work)
