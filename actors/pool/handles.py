"""The executor's records of workers, calls and evaluations, and the time limits of calls."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError

from actors import runtime
from actors.pool.liveness import LivenessProbe
from actors.pool.serializer import Blocks
from actors.ray_versions import AnyRef
from fedraa.engine.hang_detector import HangDetector
from fedraa.messages import Evaluation, State, Task, Vector

START = "start"
LOAD = "load"
TRAIN = "train"
EVALUATE = "evaluate"
# Ray repeats a lost call within this time. A worker that has not begun its call after this time is replaced.
MAX_IDLE_S = 30.0
# A worker executes these calls before its first training or evaluation. They have no time limit.
STARTUP_CALLS = (START, LOAD)


@dataclass(eq=False)
class Call:
    """A call that has not ended.

    Attributes:
        kind: START (the worker starts), LOAD (the worker waits for the data of its node), TRAIN or EVALUATE.
        handle: The worker.
        ref: The reference of the call's result.
        work: The amount of work. The duration of calls of one kind is about proportional to it.
        tasks: The tasks of a TRAIN call.
        evaluation: The evaluation of an EVALUATE call.
        args: The references among the call's arguments.
    """

    kind: str
    handle: "WorkerHandle"
    ref: AnyRef
    work: float = 1.0
    tasks: list[Task] = field(default_factory=list)
    evaluation: "WorkerEvaluation | None" = None
    args: Sequence[AnyRef] = ()

    def has_arguments(self) -> bool:
        """Return True if all arguments are on this node."""
        args = list(dict.fromkeys(self.args))
        return not args or len(runtime.wait(args, num_returns=len(args), timeout=0)[0]) == len(args)


@dataclass(eq=False)
class WorkerHandle:
    """A worker actor, and its calls that have not ended.

    Attributes:
        number: The index of the worker.
        group: The index of its worker group.
        actor: The actor.
        probe: The liveness probe of the actor.
        deaths: The number of deaths since the worker last finished a call.
        node: The id of its node; empty until the worker has started.
        blocks: The clients' training data; None until the worker is ready for work.
        host: The data host of its node, if the run has data hosts.
        since: The monotonic time from which the duration of the first call in `calls` is measured.
        calls: The calls that have not ended, in order.
    """

    number: int
    group: int
    actor: Any
    probe: LivenessProbe
    deaths: int
    node: str = ""
    blocks: Blocks | None = None
    host: Any = None
    since: float = 0.0
    calls: deque[Call] = field(default_factory=deque)

    def describe_overrun(self, limits: HangDetector) -> str | None:
        """Return the problem if the current call takes too long or does not begin; otherwise None.

        Startup calls have no time limit. Ray sends a message when the call's arguments are on the worker's node. If
        this message is lost, the call does not begin.
        """
        if not self.calls or self.calls[0].kind in STARTUP_CALLS:
            return None
        call = self.calls[0]
        bound = limits.bound(call.kind, call.work)
        if runtime.monotonic() - self.since > bound:
            return f"worker hung: no answer within {bound:.3g} s"
        if self.probe.idle_seconds(self.since) > MAX_IDLE_S and call.has_arguments():
            return f"worker idle: its call did not begin within {MAX_IDLE_S:.3g} s"
        return None


def describe_death(call: Call, error: RayError) -> str:
    """Return the reason why a worker died. A worker that Ray cannot reach also counts as dead."""
    if isinstance(error, ActorUnavailableError):
        return "worker could not be reached"
    if call.kind not in STARTUP_CALLS:
        return "worker died"
    cause = getattr(error, "cause", error)
    return f"worker did not start: {(str(cause).strip().splitlines() or [''])[-1].strip()}"


@dataclass
class WorkerEvaluation:
    """An evaluation on a worker. If the worker dies, another worker repeats the evaluation.

    Attributes:
        receive: `RayExecutor.receive`, which waits for the end of a call.
        ref: The reference of the parameters.
        kept_ref: The reference of the values that clients keep for their personal models.
        evaluation: The result; None until the evaluation is finished.
        failures: The number of failed attempts.
    """

    receive: Callable[[float], bool]
    ref: AnyRef
    kept_ref: AnyRef
    evaluation: Evaluation | None = None
    failures: int = 0

    @property
    def params(self) -> Vector:
        """The parameters, as a view of the object store."""
        params: Vector = runtime.get(self.ref)
        return params

    @property
    def kept(self) -> State:
        """The values that clients keep for their personal models, as views of the object store."""
        kept: State = runtime.get(self.kept_ref)
        return kept

    def result(self, timeout: float) -> Evaluation | None:
        give_up = runtime.monotonic() + timeout
        while self.evaluation is None and self.receive(give_up):
            pass
        return self.evaluation
