"""The executor on Ray: worker actors that train and evaluate, and the replacement of dead workers."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from ray.exceptions import ActorUnavailableError, ObjectLostError, RayError, RayTaskError

from actors import runtime
from actors.cluster.placement import worker_options
from actors.pool.data_host import DataHosts
from actors.pool.handles import (
    EVALUATE,
    LOAD,
    START,
    STARTUP_CALLS,
    TRAIN,
    Call,
    WorkerEvaluation,
    WorkerHandle,
    describe_death,
)
from actors.pool.liveness import Heartbeat, LivenessProbe, actor_class
from actors.pool.serializer import Blocks, TaskSerializer, put_blocks
from actors.ray_versions import AnyRef
from actors.worker.worker import Worker
from fedraa.config.processes import CALLS_PER_WORKER
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.executor import fault_of_task, format_error, may_be_client_fault
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.task_pool import MAX_WORKER_DEATHS, TaskPool
from fedraa.engine.task_queues import Queues
from fedraa.errors import InputError, WorkersLost
from fedraa.messages import Fault, Index, SharedBuffer, State, Update, Vector

# Seconds between two checks for frozen actors.
CHECK_SECONDS = 1.0
logger = logging.getLogger(__name__)


@dataclass
class RayExecutor(TaskPool):
    """An executor that trains tasks on worker actors.

    Responsibilities:
      - It starts the workers of every worker group.
      - It puts the tasks of client n into the queue of worker group `group_of[n]`. Any worker of the group trains them.
      - It replaces a worker that dies, hangs or freezes. Other workers get its waiting calls.
      - If a call with several tasks fails, it sends each task again in a separate call.
      - It does not replace a worker after `MAX_WORKER_DEATHS` deaths in a row. WorkersLost: a group has no worker left.

    Args:
        worker_spec: The reference of the WorkerSpec.
        blocks: The clients' training data.
        evaluation_data: The reference of the evaluation data.
        groups: The worker groups.
        threads: The number of threads of each worker.
        device: The option `device` of the experiment.
        placement: `pack` or `spread`.
        stack: The number of tasks that a worker trains as one batched computation.
        group_of: The worker group of each client; None if there is only one group.
        worker: The actor class of the workers.
        hang_detector: The time limits of calls.
        hosts: The data hosts, which read the clients' data on every node; None if `blocks` has the data.
        check: Called after a failure. It raises an error if the cause is not a worker.
        watch: Called regularly. It raises an error if another actor is frozen.
        heartbeat: The bounds of liveness probes.
    """

    worker_spec: AnyRef
    blocks: Blocks
    evaluation_data: AnyRef
    groups: tuple[WorkerGroup, ...]
    threads: int
    device: str
    placement: str
    stack: int = 1
    group_of: Index | None = None
    worker: type[Worker] = Worker
    hang_detector: HangDetector = field(default_factory=HangDetector)
    hosts: DataHosts | None = None
    check: Callable[[], None] | None = None
    watch: Callable[[], None] | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _glance_at: float = 0.0
    _receive_at: float = 0.0
    _handles: dict[int, WorkerHandle] = field(default_factory=dict)
    _evaluations: deque[WorkerEvaluation] = field(default_factory=deque)
    _calls: dict[AnyRef, Call] = field(default_factory=dict)
    _outcomes: dict[int, Update | Fault] = field(default_factory=dict)
    _faults: deque[Fault] = field(default_factory=deque)
    _last: str = ""

    @classmethod
    def of(cls, spec: RunSpec, **fields: Any) -> Self:
        """Start the workers of a run and return its executor. `fields` must contain `groups`."""
        experiment = spec.experiment
        if "blocks" not in fields:
            fields["blocks"] = put_blocks(spec.data)
        return cls(
            worker_spec=runtime.put(make_worker_spec(spec)),
            evaluation_data=runtime.put(spec.evaluation_data),
            threads=experiment.threads_per_worker,
            device=experiment.device,
            placement=experiment.placement,
            stack=experiment.vmap_batch,
            **fields,
        )

    def __post_init__(self) -> None:
        self.workers = sum(group.workers for group in self.groups)
        self._offsets = self.blocks.offsets
        self._serializer = TaskSerializer()
        self._queues = Queues(len(self.groups), self.group_of, self._task_work, self.stack)
        self._class = actor_class(self.worker)
        numbers = count()
        for number, group in enumerate(self.groups):
            for _ in range(group.workers):
                self._start_worker(next(numbers), number, deaths=0)

    def share(self, params: Vector) -> SharedBuffer:
        return self._serializer.share(params)

    def evaluate(self, params: Vector, kept: State) -> WorkerEvaluation:
        pending = WorkerEvaluation(self.receive, runtime.put(params), runtime.put(kept))
        self._evaluations.append(pending)
        self._fill_queues()
        return pending

    def close(self) -> None:
        for handle in self._handles.values():
            runtime.kill(handle.actor)
        self._handles.clear()
        if self.hosts is not None:
            self.hosts.close()

    def receive(self, give_up: float) -> bool:
        """Wait until a call of a worker ends, and handle its result or error. Replace workers that hang.

        Return False if no call has ended by the monotonic time `give_up`. Raise WorkersLost if a group has no worker.
        """
        for number, group in enumerate(self.groups):
            if all(handle.group != number for handle in self._handles.values()):
                tier = f" for tier {number + 1}" if len(self.groups) > 1 else ""
                died = f"{group.workers} died {MAX_WORKER_DEATHS} times in a row; the last error is: {self._last}"
                raise WorkersLost("workers", f"none is left{tier}: {died}")
        left = give_up - runtime.monotonic()
        timeout = min(CHECK_SECONDS, max(0.0, left))
        if not self._calls:
            runtime.sleep(timeout)
            return left > 0
        ended, _ = runtime.wait(list(self._calls), num_returns=1, timeout=timeout)
        for ref in ended:
            self._end_call(self._calls[ref])
        for handle in list(self._handles.values()):
            self._check_time(handle)
        if runtime.monotonic() >= self._glance_at:
            self._check_liveness()
        self._fill_queues()
        return bool(ended) or left > 0

    def _start_worker(self, number: int, group: int, deaths: int) -> None:
        device = self.device
        if device == "auto" and not self.groups[group].needs.get("GPU"):
            device = "cpu"
        actor = self._create_actor(number, group, device)
        handle = WorkerHandle(number, group, actor, LivenessProbe(actor, self.heartbeat), deaths)
        self._handles[number] = handle
        self._add_call(Call(START, handle, handle.actor.started.remote()))

    def _create_actor(self, number: int, group: int, device: str) -> Any:
        options = self._class.options(**worker_options(self.groups[group], self.placement))
        return options.remote(number, self.worker_spec, self.threads, device)

    def _add_call(self, call: Call) -> None:
        if not call.handle.calls:
            call.handle.since = runtime.monotonic()
        call.handle.calls.append(call)
        self._calls[call.ref] = call

    def _now(self) -> float:
        return runtime.monotonic()

    def _ready_workers(self, group: int | None = None) -> list[WorkerHandle]:
        """Return the workers of a group (default: of all groups) that are ready for work."""
        # Another thread may replace workers, because the server counts them for the driver while the run continues.
        handles = list(self._handles.values())
        return [handle for handle in handles if handle.blocks is not None and group in (None, handle.group)]

    def _emptiest_worker(self, group: int | None = None) -> WorkerHandle | None:
        return min(self._ready_workers(group), key=lambda handle: len(handle.calls), default=None)

    def _fill_queues(self) -> None:
        """Send waiting evaluations and tasks, ordered by due time, to the workers with the fewest calls."""
        while self._evaluations:
            handle = self._emptiest_worker()
            if handle is None:
                break
            pending = self._evaluations.popleft()
            args = (pending.ref, pending.kept_ref, self.evaluation_data)
            self._add_call(Call(EVALUATE, handle, handle.actor.evaluate.remote(*args), evaluation=pending, args=args))
        for group in range(len(self.groups)):
            while self._queues.has_waiting(group):
                handle = self._emptiest_worker(group)
                if handle is None or len(handle.calls) >= CALLS_PER_WORKER:
                    break
                assert handle.blocks is not None
                tasks = self._queues.take(group, CALLS_PER_WORKER * len(self._ready_workers(group)))
                jobs, shared_args = self._serializer.pack(tasks, handle.blocks)
                ref = handle.actor.train_all.remote(jobs, *shared_args)
                work = sum(map(self._task_work, tasks))
                self._add_call(Call(TRAIN, handle, ref, work=work, tasks=tasks, args=shared_args))

    def _end_call(self, call: Call) -> None:
        """Handle a call that ended with a result, an exception of the called method, or the worker's death."""
        handle = call.handle
        result = wrong = cause = None
        try:
            result = runtime.get(call.ref)
        except RayError as error:
            if self.check is not None:
                self.check()
            lost = isinstance(getattr(error, "cause", error), ObjectLostError)
            if isinstance(error, RayTaskError) and not lost and call.kind not in STARTUP_CALLS:
                wrong = format_error(error.cause)
                if not isinstance(error.cause, RayError):
                    cause = error.cause
            # The worker died during its oldest call or after it. Therefore the oldest call is handled before this one.
            elif handle.calls[0] is not call and not isinstance(error, ActorUnavailableError):
                return self._end_call(handle.calls[0])
            else:
                if self.hosts is not None and (lost or call.kind == LOAD):
                    self.hosts.drop(handle.node, handle.host)
                return self._replace_worker(handle, describe_death(call, error))
        now = runtime.monotonic()
        if handle.calls[0] is call:
            if call.kind not in STARTUP_CALLS:
                self.hang_detector.record_duration(call.kind, call.work, now - handle.since)
                handle.deaths = 0
            handle.since = now
        handle.calls.remove(call)
        del self._calls[call.ref]
        if call.kind in STARTUP_CALLS and result is not None:
            self._continue_startup(handle, result)
        self._deliver_outcome(call, result, wrong, cause)

    def _continue_startup(self, handle: WorkerHandle, answer: str | Blocks) -> None:
        """Continue the start of a worker with the answer to its START call or its LOAD call.

        START returns the id of the worker's node. Without data hosts, the worker is then ready. With data hosts, a LOAD
        call follows. It returns the data from the data host of this node, and the worker is then ready.
        """
        if isinstance(answer, Blocks):
            handle.blocks = answer
        elif self.hosts is None:
            handle.node = answer
            handle.blocks = self.blocks
        else:
            handle.node = answer
            handle.host, ref = self.hosts.blocks(answer)
            self._add_call(Call(LOAD, handle, ref))

    def _check_time(self, handle: WorkerHandle) -> None:
        """Replace a worker whose current call takes too long or never begins."""
        cause = handle.describe_overrun(self.hang_detector)
        if cause is not None:
            self._replace_worker(handle, cause)

    def _check_liveness(self) -> None:
        """Replace frozen actors.

        Data hosts and server shards are checked before workers, because a worker that waits for them may be silent.
        """
        self._glance_at = runtime.monotonic() + CHECK_SECONDS
        if self.watch is not None:
            self.watch()
        if self.hosts is not None:
            self.hosts.drop_frozen()
        for handle in list(self._handles.values()):
            silence = handle.probe.silent_seconds()
            if silence is not None:
                if self.check is not None:
                    self.check()
                self._replace_worker(handle, f"worker froze: no sign of life for {silence:.3g} s")

    def _deliver_outcome(self, call: Call, result: Any, wrong: str | None, cause: Exception | None = None) -> None:
        """Store the results or the error of a call. If a call with several tasks failed, send each task separately.

        Args:
            call: The ended call.
            result: The result of the call if it succeeded.
            wrong: The error if the call failed.
            cause: The exception of the called method; None if it raised none.
        """
        worker = call.handle.number
        tasks = call.tasks
        if wrong is None:
            self._store_result(call, result)
        elif len(tasks) == 1:
            fault = Fault(tasks[0].id, worker, wrong) if cause is None else fault_of_task(tasks[0], worker, cause)
            self._settle_task(tasks[0], fault)
        else:
            error = wrong
            if tasks:
                error += f"; each of its {len(tasks)} tasks is sent again in a separate call"
            self._faults.append(Fault(None, worker, error))
            self._queues.again(tasks, alone=True)
            if call.evaluation is not None:
                if isinstance(cause, InputError) and may_be_client_fault(cause):
                    raise cause
                self._evaluate_again(call.evaluation, wrong)

    def _store_result(self, call: Call, result: Any) -> None:
        if call.evaluation is not None:
            call.evaluation.evaluation = result
        elif call.tasks:
            for task, update in zip(call.tasks, result, strict=True):
                self._settle_task(task, update)
            self._queues.record_duration(sum(update.seconds for update in result), call.work)

    def _replace_worker(self, handle: WorkerHandle, cause: str) -> None:
        """Kill a worker, and start a new one. After `MAX_WORKER_DEATHS` deaths, no new worker is started."""
        runtime.kill(handle.actor)
        del self._handles[handle.number]
        self._last = cause
        deaths = handle.deaths + 1
        if deaths < MAX_WORKER_DEATHS:
            self._start_worker(handle.number, handle.group, deaths)
        else:
            cause += f"; not replaced after {deaths} deaths in a row"
            logger.warning("worker %d: %s; workers left: %d", handle.number, cause, len(self._handles))
        if not handle.calls:
            self._faults.append(Fault(None, handle.number, cause))
            return
        for call in handle.calls:
            del self._calls[call.ref]
        culprit, *innocent = handle.calls
        self._deliver_outcome(culprit, None, cause)
        self._repeat_calls(innocent)
