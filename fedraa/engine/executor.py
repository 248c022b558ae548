"""The executor that trains tasks in this process. The package `actors` has the executor on Ray."""

import heapq
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, Self

from fedraa.client import Work
from fedraa.client.batched_trainer import stack_row
from fedraa.client.task_trainer import TaskTrainer
from fedraa.data import Federated
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import InputError, RunFailed, trap_system_exit
from fedraa.evaluation.evaluator import Evaluator
from fedraa.messages import Evaluation, Fault, SharedBuffer, State, Task, Update, Vector

# Errors that a worker causes, not a client. They are searched in the text of an error, because the error of a component
# contains the original error only as text. MemoryError is also a part of the names of torch's and NumPy's errors.
NOT_OF_CLIENTS = ("MemoryError", "AcceleratorError", "CUDA error")


# The local executor trains some tasks before the loop waits for them. It stops after AHEAD_S seconds, or when the
# finished updates take AHEAD_BYTES. This is faster: if training and server updates alternate, they displace each
# other's data from the processor's caches.
AHEAD_S = 0.02
AHEAD_BYTES = 2**21


class PendingEvaluation(Protocol):
    """An evaluation in progress."""

    @property
    def params(self) -> Vector:
        """A read-only copy [d] of the model that is evaluated."""

    @property
    def kept(self) -> State:
        """The values that clients keep for personal models, as they were at the start of the evaluation; read-only."""

    def result(self, timeout: float) -> Evaluation | None:
        """Return the evaluation, or None if it takes longer than `timeout` seconds."""


class Executor(Protocol):
    """The trainer of tasks. The outcome of each task is an Update or a Fault."""

    workers: int

    def await_workers(self, timeout: float) -> bool:
        """Return True if all workers start within `timeout` seconds."""

    def share(self, params: Vector) -> SharedBuffer:
        """Return a constant buffer for several tasks. It is stored only once, and sent to each worker only once."""

    def submit(self, task: Task, due: float) -> None:
        """Queue the task for training. Tasks due earlier go first."""

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        """Return the outcome of this task, or the fault of a worker that had no task.

        Return None if neither arrives within `timeout` seconds.
        """

    def ready_outcomes(self, timeout: float) -> list[Update | Fault]:
        """Return the outcomes in order of arrival. Wait up to `timeout` seconds for the first."""

    def cancel(self, task: int) -> None:
        """Cancel a submitted task, so that its outcome is never returned."""

    def evaluate(self, params: Vector, kept: State) -> PendingEvaluation:
        """Start an evaluation of the full model [d].

        Args:
            params: The model. It may change while the evaluation runs.
            kept: The values that clients with personal models keep; empty without such models. They must not change
                while the evaluation runs.
        """

    def busy(self) -> tuple[int, int]:
        """Return the number of busy workers and the number of workers."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class FinishedEvaluation:
    """A finished evaluation."""

    params: Vector
    kept: State
    evaluation: Evaluation

    def result(self, timeout: float) -> Evaluation:
        return self.evaluation


def format_error(error: BaseException) -> str:
    """Return an error of a task as one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0].strip()}"


def may_be_client_fault(error: BaseException) -> bool:
    """Return True if the client's data or components may have caused the error, False if the worker did."""
    text = f"{type(error).__name__}: {error}"
    return not isinstance(error, MemoryError) and not any(name in text for name in NOT_OF_CLIENTS)


def fault_of_task(task: Task, worker: int, error: BaseException) -> Fault:
    """Return the fault for an error in the training of a task."""
    input_error = error if isinstance(error, InputError) else None
    return Fault(task.id, worker, format_error(error), may_be_client_fault(error), input_error)


def train_together(
    trainer: TaskTrainer, data: Federated, tasks: Sequence[Task], worker: int = 0
) -> Sequence[Update | Fault] | None:
    """Train tasks as one batched computation and return their outcomes. Return None if one of several tasks failed.

    Args:
        trainer: The trainer.
        data: The data of the clients.
        tasks: The tasks.
        worker: The number of the worker, for faults.
    """
    try:
        with trap_system_exit():
            return trainer.train_all([Work(task, *data.shard(task.client, task.turn)) for task in tasks])
    # The client's code and data may raise any exception.
    except Exception as error:
        trainer.reset()
        if len(tasks) > 1:
            return None
        return [fault_of_task(tasks[0], worker, error)]


class _Dropped(BaseException):
    """The exception that interrupts training after a request to stop."""


class LocalExecutor:
    """An executor in this process.

    When the loop waits for a task, the executor trains this task, together with at most `stack` - 1 other tasks of the
    same submodel shape. On the virtual clock, the executor also trains short tasks before the loop waits for them.
    """

    workers = 1

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        """Return the executor of a run."""
        device = choose_device(spec.experiment.device)
        worker = make_worker_spec(spec)
        evaluator = worker.evaluator(spec.evaluation_data, device)
        return cls(worker.trainer(device), evaluator, spec.data, spec.experiment.vmap_batch)

    def __init__(self, trainer: TaskTrainer, evaluator: Evaluator, data: Federated, stack: int = 1) -> None:
        self._trainer = trainer
        self._stack = stack
        self._evaluator = evaluator
        self._data = data
        self._tasks: OrderedDict[int, Task] = OrderedDict()
        # The tasks that are trained ahead, as soon as there is time: a heap of their due times and their numbers.
        self._due: list[tuple[float, int]] = []
        self._trained: dict[int, Update | Fault] = {}
        # The ids of tasks that were trained together when one of them failed. Each of them is trained again, without
        # the others, to find the task that fails.
        self._alone: set[int] = set()
        self._training = False

    def await_workers(self, timeout: float) -> bool:
        return True

    def share(self, params: Vector) -> SharedBuffer:
        return SharedBuffer(params)

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task
        heapq.heappush(self._due, (due, task.id))

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        return self._take_outcome(task, ahead=True)

    def _take_outcome(self, task: int, *, ahead: bool) -> Update | Fault | None:
        if task not in self._trained:
            try:
                self._training = True
                try:
                    started = time.perf_counter()
                    self._train_stack(task)
                    if ahead:
                        self._train_ahead(started + AHEAD_S)
                finally:
                    self._training = False
            except _Dropped:
                return None
        del self._tasks[task]
        outcome = self._trained.pop(task)
        if isinstance(outcome, Update):
            self._alone.discard(task)
        return outcome

    def _train_ahead(self, end: float) -> None:
        """Train the tasks that are due next. Stop at the time `end`, or if the updates need more than `AHEAD_BYTES`."""
        while self._due:
            number = self._due[0][1]
            is_waiting = number in self._tasks and number not in self._trained
            if is_waiting and (time.perf_counter() >= end or not self._has_room(self._tasks[number])):
                return
            heapq.heappop(self._due)
            if is_waiting:
                self._train_stack(number)

    def _has_room(self, task: Task) -> bool:
        """Return True if AHEAD_BYTES allow one more update of this task's size."""
        return (len(self._trained) + 1) * task.nbytes <= AHEAD_BYTES

    def _train_stack(self, task: int) -> None:
        """Train this task together with the next tasks of the same submodel shape."""
        first = self._tasks[task]
        apart = self._alone | self._trained.keys() | {task}
        alike = (other for number, other in self._tasks.items() if number not in apart and other.widths == first.widths)
        stack = [first]
        if task not in self._alone:
            stack += islice(self._skip_used_rows(first, alike), self._stack - 1)
        outcomes = train_together(self._trainer, self._data, stack)
        numbers = [stacked.id for stacked in stack]
        if outcomes is None:
            self._alone.update(numbers)
            self._train_stack(task)
        else:
            self._trained |= zip(numbers, outcomes, strict=True)

    def _skip_used_rows(self, first: Task, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks that can be in one stack with the task `first`, because each needs another row."""
        used = {stack_row(first, self._stack)}
        for task in tasks:
            row = stack_row(task, self._stack)
            if row not in used:
                used.add(row)
                yield task

    def ready_outcomes(self, timeout: float) -> list[Update | Fault]:
        # On the wall clock, no task is trained before the loop waits for it.
        self._due.clear()
        if not self._tasks:
            time.sleep(timeout)
            return []
        outcome = self._take_outcome(next(iter(self._tasks)), ahead=False)
        if outcome is None:
            return []
        return [outcome]

    def cancel(self, task: int) -> None:
        self._tasks.pop(task, None)
        self._trained.pop(task, None)
        self._alone.discard(task)

    def busy(self) -> tuple[int, int]:
        return int(bool(self._tasks)), 1

    def evaluate(self, params: Vector, kept: State) -> PendingEvaluation:
        try:
            with trap_system_exit():
                return FinishedEvaluation(params.copy(), kept, self._evaluator.evaluate(params, kept))
        except InputError:
            # This error already names the user's component.
            raise
        # The user's metrics may raise any exception.
        except Exception as error:
            raise RunFailed("evaluation", f"it failed with {format_error(error)}") from error

    def drop(self) -> None:
        """Interrupt training. A signal handler calls this while training runs."""
        if self._training:
            raise _Dropped

    def close(self) -> None:
        self._tasks.clear()
        self._due.clear()
        self._trained.clear()
