"""The part that all executors with several workers share: tasks that wait, and outcomes that have arrived."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fedraa.engine.task_failures import MAX_TASK_ATTEMPTS
from fedraa.engine.task_queues import Queues
from fedraa.errors import RunFailed
from fedraa.messages import Fault, Index, Task, Update

# A worker that dies MAX_WORKER_DEATHS times in a row, without finishing a call in between, is not replaced.
MAX_WORKER_DEATHS = 3
# Seconds between two looks for ended calls while the server sends the tasks of a round.
RECEIVE_SECONDS = 0.005


class TaskPool(ABC):
    """A base class of executors that send tasks to workers and receive their outcomes."""

    workers: int
    _offsets: Index
    _queues: Queues
    _evaluations: deque[Any]
    _outcomes: dict[int, Update | Fault]
    _faults: deque[Fault]
    _receive_at: float

    @abstractmethod
    def receive(self, give_up: float) -> bool:
        """Wait until a call of a worker ends, and handle it. Return False if none ends by the time `give_up`."""

    @abstractmethod
    def _now(self) -> float:
        """Return the monotonic time in seconds."""

    @abstractmethod
    def _fill_queues(self) -> None:
        """Send waiting evaluations and tasks to the workers."""

    @abstractmethod
    def _ready_workers(self) -> Sequence[Any]:
        """Return the workers that are ready for work. Their `calls` are the calls without an answer."""

    def await_workers(self, timeout: float) -> bool:
        give_up = self._now() + timeout
        while len(self._ready_workers()) < self.workers and self.receive(give_up):
            pass
        return len(self._ready_workers()) == self.workers

    def busy(self) -> tuple[int, int]:
        ready = self._ready_workers()
        return sum(bool(worker.calls) for worker in ready), len(ready)

    def submit(self, task: Task, due: float) -> None:
        self._queues.submit(task, due)
        self._fill_queues()
        # The dispatch of a large round takes longer than the first calls. Workers that end them get new calls here.
        if self._now() >= self._receive_at:
            self._receive_at = self._now() + RECEIVE_SECONDS
            self.receive(give_up=0.0)

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        give_up = self._now() + timeout
        while not self._faults and task not in self._outcomes and self.receive(give_up):
            pass
        return self._faults.popleft() if self._faults else self._outcomes.pop(task, None)

    def ready_outcomes(self, timeout: float) -> list[Update | Fault]:
        if not self._outcomes and not self._faults:
            self.receive(self._now() + timeout)
        outcomes = [*self._faults, *self._outcomes.values()]
        self._faults.clear()
        self._outcomes.clear()
        return outcomes

    def cancel(self, task: int) -> None:
        self._outcomes.pop(task, None)
        self._queues.cancel(task)

    def _settle_task(self, task: Task, outcome: Update | Fault) -> None:
        if self._queues.ended(task, well=isinstance(outcome, Update)):
            self._outcomes[task.id] = outcome

    def _task_work(self, task: Task) -> float:
        """Return a task's number of samples times its number of parameters, which is about proportional to its time."""
        samples = self._offsets[task.client + 1] - self._offsets[task.client]
        return float(int(samples) * task.size)

    def _repeat_calls(self, calls: Iterable[Any]) -> None:
        """Queue the `tasks` and the `evaluation` of calls again that a lost worker had not begun."""
        for call in calls:
            self._queues.again(call.tasks)
            if call.evaluation is not None:
                self._evaluations.append(call.evaluation)

    def _evaluate_again(self, pending: Any, problem: str) -> None:
        """Queue a failed evaluation again. After `MAX_TASK_ATTEMPTS` failures, raise RunFailed."""
        pending.failures += 1
        if pending.failures == MAX_TASK_ATTEMPTS:
            raise RunFailed("evaluation", f"it failed {MAX_TASK_ATTEMPTS} times: {problem}")
        self._evaluations.append(pending)
