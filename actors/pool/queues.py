"""The tasks that wait for workers, and their grouping into calls."""

import heapq
import math
from collections.abc import Callable, Iterable

from fedraa.messages import Index, Task

# Seconds of training that one call of several tasks may take. A call itself costs milliseconds.
GROUP_SECONDS = 0.1
# Maximum number of bytes in the answer to one call.
GROUP_BYTES = 8 * 2**20


class Queues:
    """A queue for each worker group, ordered by due time. Tasks of client n wait for group `group_of[n]`.

    If many short tasks wait, one call carries several of them. The pace of the last call predicts the duration of
    tasks.

    Args:
        groups: The number of worker groups.
        group_of: The group of each client; None if there is one group.
        work: An amount to which the duration of a task is roughly proportional.
        stack: The number of tasks that a worker trains at a time. A call carries at least this many if they wait.
    """

    def __init__(self, groups: int, group_of: Index | None, work: Callable[[Task], float], stack: int = 1) -> None:
        self._group_of = group_of
        self._work = work
        self._stack = stack
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(groups)]
        self._alone: set[int] = set()
        # Seconds per unit of work.
        self._pace = math.inf

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        self.again([task])

    def again(self, tasks: Iterable[Task], *, alone: bool = False) -> None:
        """Queue unfinished tasks again. With `alone`, a later call that carries such a task carries no other task."""
        for task in tasks:
            if alone:
                self._alone.add(task.id)
            group = 0
            if self._group_of is not None:
                group = int(self._group_of[task.client])
            heapq.heappush(self._waiting[group], (self._tasks[task.id][1], task.id))

    def ended(self, task: Task, *, well: bool) -> None:
        """Remove an ended task. A failed task travels in a separate call if it is submitted again."""
        del self._tasks[task.id]
        if well:
            self._alone.discard(task.id)
        else:
            self._alone.add(task.id)

    def cancel(self, number: int) -> bool:
        """Remove a task that waits. Return False if it does not wait, because a worker has received it."""
        for waiting in self._waiting:
            remaining = [entry for entry in waiting if entry[1] != number]
            if len(remaining) < len(waiting):
                waiting[:] = remaining
                heapq.heapify(waiting)
                del self._tasks[number]
                self._alone.discard(number)
                return True
        return False

    def record_duration(self, seconds: float, work: float) -> None:
        """Record the duration of an amount of work."""
        self._pace = seconds / work

    def has_waiting(self, group: int) -> bool:
        """Return True if a task waits for the worker group."""
        return bool(self._waiting[group])

    def take(self, group: int, places: int) -> list[Task]:
        """Return the task that is due first and, if tasks are short, some of those that are due next.

        Their number is at most a fair share for `places` calls, unless a stack holds more.
        """
        waiting = self._waiting[group]
        share = len(waiting) // places
        tasks: list[Task] = []
        seconds = size = 0.0
        while waiting:
            number = waiting[0][1]
            task, _ = self._tasks[number]
            seconds += self._pace * self._work(task)
            size += task.nbytes
            full = len(tasks) >= share or seconds > GROUP_SECONDS or size > GROUP_BYTES
            if (full and len(tasks) >= self._stack) or (tasks and number in self._alone):
                break
            heapq.heappop(waiting)
            tasks.append(task)
            if number in self._alone:
                break
        return tasks
