"""The tasks that were sent and are not finished, sorted by due time."""

from dataclasses import dataclass, replace

from fedraa.ledger.due_queue import DueQueue
from fedraa.messages import Fault, Task, Update


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task, and the time at which its outcome is due on the run's clock."""

    task: Task
    due: float


class TasksInFlight:
    """A collection of the tasks in flight. On the wall clock it also holds outcomes that are not due yet."""

    def __init__(self) -> None:
        self._sent: dict[int, SentTask] = {}
        # This queue and `_arrived_by_due_time` may contain finished tasks, but never as their first task.
        self._by_due_time = DueQueue()
        self._outcomes: dict[int, Update | Fault] = {}
        self._arrived_by_due_time = DueQueue()

    def __len__(self) -> int:
        return len(self._sent)

    def due_times(self) -> list[tuple[int, float]]:
        """Return the number and the due time of each task, in the order of dispatch."""
        return [(number, sent.due) for number, sent in self._sent.items()]

    def add(self, task: Task, due: float) -> None:
        self._sent[task.id] = SentTask(task, due)
        self._by_due_time.push(due, task.id)

    def find(self, number: int | None) -> SentTask | None:
        """Return the task with this number, or None if it is not in flight."""
        if number is None:
            return None
        return self._sent.get(number)

    @property
    def next_due(self) -> float:
        """The due time of the task that is due first."""
        return self._by_due_time.next_due

    @property
    def next_task(self) -> int:
        """The number of the task that is due first."""
        return self._by_due_time.next_task

    def remove(self, number: int) -> Task:
        """Remove and return a finished task."""
        task = self._sent.pop(number).task
        self._drop_finished()
        return task

    def discard(self, number: int) -> None:
        """Remove a task that the run no longer needs, and the outcome of the task."""
        del self._sent[number]
        self._outcomes.pop(number, None)
        self._drop_finished()

    def _drop_finished(self) -> None:
        """Remove finished tasks from the front of both queues."""
        for queue in (self._by_due_time, self._arrived_by_due_time):
            while queue and queue.next_task not in self._sent:
                queue.pop()

    def has_arrived(self, number: int | None) -> bool:
        """Return True if the outcome of this task has arrived."""
        return number in self._outcomes

    def add_outcome(self, number: int, outcome: Update | Fault, passed: float = 0.0) -> None:
        """Hold the outcome of a task until the task is due.

        Args:
            number: The number of the task.
            outcome: The outcome.
            passed: The seconds since the dispatch of the task, including its training.
        """
        if isinstance(outcome, Update):
            outcome = replace(outcome, waited=max(0.0, passed - outcome.seconds))
        self._outcomes[number] = outcome
        self._arrived_by_due_time.push(self._sent[number].due, number)

    @property
    def next_outcome_due(self) -> float:
        """The earliest due time of the outcomes that have arrived; infinite if none has arrived."""
        return self._arrived_by_due_time.next_due

    def pop_outcome(self) -> tuple[Task, Update | Fault]:
        """Remove the earliest due task among those that have an outcome. Return the task and its outcome."""
        _, number = self._arrived_by_due_time.pop()
        outcome = self._outcomes.pop(number)
        return self.remove(number), outcome
