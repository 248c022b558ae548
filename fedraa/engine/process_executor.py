"""The executor that trains tasks in worker processes on this machine, without Ray."""

import logging
import os
import time
import weakref
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import numpy as np

from fedraa.config.processes import CALLS_PER_WORKER
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.shared_memory import (
    ALIGNMENT,
    INLINE_BYTES,
    Packed,
    Piece,
    Slots,
    count_room,
    pack,
    unpack,
    write,
)
from fedraa.engine.task_pool import MAX_WORKER_DEATHS, TaskPool
from fedraa.engine.task_queues import Queues
from fedraa.engine.worker_calls import (
    ANSWER_SECONDS,
    EVALUATE,
    START,
    TRAIN,
    Call,
    Message,
    ProcessEvaluation,
    WorkerHandle,
)
from fedraa.engine.worker_process import Answer, Evaluate, Failure, Start, Train
from fedraa.errors import InputError, RunFailed, WorkersLost
from fedraa.messages import Evaluation, Fault, SharedBuffer, State, Task, Update, Vector

# Seconds between two checks for hung and dead workers.
CHECK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class ProcessExecutor(TaskPool):
    """An executor that trains tasks in worker processes on this machine.

    The processes exchange short messages through sockets, and arrays through shared memory. A process that dies, hangs
    or freezes is replaced, and its tasks are trained again.

    Args:
        spec: The run.
        workers: The number of worker processes.
        hang_detector: The time limits of calls.
    """

    def __init__(self, spec: RunSpec, workers: int, hang_detector: HangDetector | None = None) -> None:
        self.workers = workers
        self._offsets = spec.data.offsets
        self._slots = Slots()
        # The places of shared buffers, by the address of their first byte in this process and their size.
        self._shared: dict[tuple[int, int], Piece] = {}
        self._queues = Queues(1, None, self._task_work, spec.experiment.vmap_batch)
        self._evaluations: deque[ProcessEvaluation] = deque()
        self._outcomes: dict[int, Update | Fault] = {}
        self._faults: deque[Fault] = deque()
        self._hang_detector = hang_detector or HangDetector()
        self._receive_at = self._check_at = 0.0
        self._last_death = ""
        self._handles: dict[int, WorkerHandle] = {}
        # The workers end when this process closes its end of the pipe or dies.
        self._lifeline = os.pipe()
        experiment = spec.experiment
        start = Start(
            make_worker_spec(spec), spec.data, spec.evaluation_data, experiment.device, experiment.threads_per_worker
        )
        try:
            self._start = self._write_message(pack(start, dump=cloudpickle.dumps))
            for number in range(workers):
                self._start_worker(number)
        except BaseException:
            self.close()
            raise

    def share(self, params: Vector) -> SharedBuffer:
        """Return a buffer with a copy of the parameters in the shared memory, if they are large enough."""
        if params.nbytes < INLINE_BYTES:
            return SharedBuffer(params)
        lease = self._slots.lease(params.nbytes)
        [piece] = write([params.data.cast("B")], lease.place, lease.content)
        values = np.frombuffer(lease.content.data[: params.nbytes].toreadonly(), params.dtype)
        shared = SharedBuffer(values)
        bounds = _find_bounds(values.data)
        self._shared[bounds] = piece
        weakref.finalize(shared, self._shared.pop, bounds).atexit = False
        return shared

    def evaluate(self, params: Vector, kept: State) -> ProcessEvaluation:
        pending = ProcessEvaluation(params.copy(), kept, self.receive)
        self._evaluations.append(pending)
        self._fill_queues()
        return pending

    def drop(self) -> None:
        """Do nothing. The loop does not wait for tasks in other processes after a request to stop."""

    def close(self) -> None:
        for handle in self._handles.values():
            handle.end()
        self._handles.clear()
        for end in self._lifeline:
            os.close(end)
        self._slots.close()

    def receive(self, give_up: float) -> bool:
        """Wait until a worker answers or dies, and handle it.

        Return False if neither happens by the monotonic time `give_up`. Raise WorkersLost if no worker is left.
        """
        if not self._handles:
            died = f"{self.workers} died {MAX_WORKER_DEATHS} times in a row; the last error is: {self._last_death}"
            raise WorkersLost("workers", f"none is left: {died}")
        handles = {handle.connection: handle for handle in self._handles.values()}
        ready = wait(list(handles), max(0.0, give_up - time.monotonic()))
        for connection in ready:
            assert isinstance(connection, Connection)
            self._receive_answer(handles[connection])
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CHECK_SECONDS
            self._replace_lost_workers()
        self._fill_queues()
        return bool(ready) or time.monotonic() < give_up

    def _now(self) -> float:
        return time.monotonic()

    def _ready_workers(self) -> list[WorkerHandle]:
        return [handle for handle in self._handles.values() if handle.is_ready]

    def _start_worker(self, number: int, deaths: int = 0) -> None:
        handle = WorkerHandle.start(number, deaths, self._slots.memory.descriptor, self._lifeline[0])
        self._handles[number] = handle
        handle.send(Call(START, self._start))

    def _write_message(self, packed: Packed) -> Message:
        """Write a pickled call and its large arrays into the shared memory. Shared buffers are there already."""
        known = [self._shared.get(_find_bounds(array)) for array in packed.arrays]
        new = [array for array, piece in zip(packed.arrays, known, strict=True) if piece is None]
        contents = [*new, memoryview(packed.body)]
        lease = self._slots.lease(count_room(contents))
        *written, body = write(contents, lease.place, lease.content)
        places = iter(written)
        return Message(lease, body, [piece or next(places) for piece in known])

    def _fill_queues(self) -> None:
        """Send waiting evaluations and tasks, ordered by due time, to the workers with the fewest calls."""
        ready = self._ready_workers()
        while ready and (self._evaluations or self._queues.has_waiting(0)):
            handle = min(ready, key=lambda handle: len(handle.calls))
            if self._evaluations:
                pending = self._evaluations.popleft()
                message = self._write_message(pack(Evaluate(pending.params, pending.kept)))
                handle.send(Call(EVALUATE, message, evaluation=pending))
            elif len(handle.calls) < CALLS_PER_WORKER:
                self._send_tasks(handle, self._queues.take(0, CALLS_PER_WORKER * len(ready)))
            else:
                return

    def _send_tasks(self, handle: WorkerHandle, tasks: list[Task]) -> None:
        message = self._write_message(pack(Train([_with_values(task) for task in tasks])))
        # The answer has the trained parameters and the buffers that the task asks for.
        room = sum((1 + len(task.asks)) * (task.nbytes + ALIGNMENT) for task in tasks)
        work = sum(map(self._task_work, tasks))
        handle.send(Call(TRAIN, message, self._slots.lease(room), tasks, work=work))

    def _receive_answer(self, handle: WorkerHandle) -> None:
        try:
            answer: Answer = handle.connection.recv()
        except (EOFError, ConnectionError):
            self._replace_worker(handle, f"worker died (exit code {handle.await_exit()})")
            return
        except BlockingIOError:
            self._replace_worker(handle, f"worker hung: it did not finish its answer within {ANSWER_SECONDS:.3g} s")
            return
        call, seconds = handle.end_call()
        self._hang_detector.record_duration(call.kind, call.work, seconds)
        content: Any = call.reply and call.reply.content
        result = unpack(answer.body, answer.pieces, lambda slot: content)
        if isinstance(result, Failure):
            verb = "failed" if handle.is_ready else "did not start"
            handle.calls.appendleft(call)
            self._replace_worker(handle, f"worker {verb}: {result.error}")
            return
        if not handle.is_ready:
            handle.is_ready = True
            return
        handle.deaths = 0
        if call.evaluation is not None:
            self._end_evaluation(call.evaluation, result)
        else:
            self._end_tasks(call, result)

    def _end_tasks(self, call: Call, outcomes: list[Update | Fault]) -> None:
        for task, outcome in zip(call.tasks, outcomes, strict=True):
            self._settle_task(task, outcome)
        seconds = sum(outcome.seconds for outcome in outcomes if isinstance(outcome, Update))
        if seconds:
            self._queues.record_duration(seconds, call.work)

    def _end_evaluation(self, pending: ProcessEvaluation, result: Evaluation | InputError | str) -> None:
        if isinstance(result, InputError):
            raise result
        if isinstance(result, str):
            raise RunFailed("evaluation", f"it failed with {result}")
        pending.evaluation = result

    def _replace_lost_workers(self) -> None:
        for handle in list(self._handles.values()):
            cause = handle.describe_end() or handle.describe_overrun(self._hang_detector)
            if cause is not None:
                self._replace_worker(handle, cause)

    def _replace_worker(self, handle: WorkerHandle, cause: str) -> None:
        """End a worker, and start a new one. After `MAX_WORKER_DEATHS` deaths in a row, no new worker is started.

        The first call of the worker may be the cause. The other calls are sent again.
        """
        handle.end()
        del self._handles[handle.number]
        self._last_death = cause
        deaths = handle.deaths + 1
        if deaths < MAX_WORKER_DEATHS:
            self._start_worker(handle.number, deaths)
        else:
            cause += f"; not replaced after {deaths} deaths in a row"
            logger.warning("worker %d: %s; workers left: %d", handle.number, cause, len(self._handles))
        if not handle.calls:
            self._faults.append(Fault(None, handle.number, cause))
            return
        culprit, *others = handle.calls
        self._fail_call(culprit, handle.number, cause)
        self._repeat_calls(others)

    def _fail_call(self, call: Call, worker: int, cause: str) -> None:
        """Store the fault of a call after its worker's death. Send each of several tasks again in a separate call."""
        if len(call.tasks) == 1:
            [task] = call.tasks
            self._settle_task(task, Fault(task.id, worker, cause))
            return
        if call.tasks:
            cause += f"; each of its {len(call.tasks)} tasks is sent again in a separate call"
            self._queues.again(call.tasks, alone=True)
        self._faults.append(Fault(None, worker, cause))
        if call.evaluation is not None:
            self._evaluate_again(call.evaluation, cause)


def _with_values(task: Task) -> Task:
    """Return a task with arrays as buffers, which can be pickled."""
    return replace(task, buffer=task.params, extras={name: task.extra_values(name) for name in task.extras})


def _find_bounds(array: memoryview) -> tuple[int, int]:
    """Return the address of an array's first byte in this process, and its size in bytes."""
    address: int = np.frombuffer(array, np.uint8).__array_interface__["data"][0]
    return address, array.nbytes
