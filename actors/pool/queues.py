"""Queues of the tasks that wait for workers. Several short tasks are sent to a worker in one call."""

import heapq
import math
from collections.abc import Callable, Iterable

from fedraa.messages import Index, Task

# Maximum predicted seconds of training in a call with several tasks. Longer calls would save little, because the
# overhead of a call is only milliseconds.
GROUP_SECONDS = 0.1
# Maximum number of bytes in the answer to a call of several tasks.
GROUP_BYTES = 16 * 2**20


class Queues:
    """A queue of tasks for each worker group. The task that is due first comes first.

    Tasks of client n wait in the queue of group `group_of[n]`. If many short tasks wait, several of them are sent in
    one call. The duration of a task is predicted from the last call: its seconds per unit of work, times the work of
    the task.

    Args:
        groups: The number of worker groups.
        group_of: The group of each client; None if there is only one group.
        work: A function that returns the amount of work of a task. The duration of a task is roughly proportional to
            it.
        stack: The number of tasks that a worker trains as one batched computation. If enough tasks wait, a call has at
            least this number.
    """

    def __init__(self, groups: int, group_of: Index | None, work: Callable[[Task], float], stack: int = 1) -> None:
        self._group_of = group_of
        self._work = work
        self._stack = stack
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(groups)]
        self._alone: set[int] = set()
        # The ids of cancelled tasks that were already sent to a worker. Their outcomes are discarded.
        self._cancelled: set[int] = set()
        # The seconds of the last call divided by its amount of work.
        self._pace = math.inf

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        self.again([task])

    def again(self, tasks: Iterable[Task], *, alone: bool = False) -> None:
        """Put unfinished tasks into the queues again. If `alone` is True, each of them gets a separate call."""
        for task in tasks:
            if alone:
                self._alone.add(task.id)
            group = 0
            if self._group_of is not None:
                group = int(self._group_of[task.client])
            heapq.heappush(self._waiting[group], (self._tasks[task.id][1], task.id))

    def ended(self, task: Task, *, well: bool) -> bool:
        """Remove an ended task. Return False if the task was cancelled, which means that its outcome must be discarded.

        Args:
            task: The task.
            well: False if the task failed. If it is submitted again, it gets a separate call.
        """
        del self._tasks[task.id]
        if well:
            self._alone.discard(task.id)
        else:
            self._alone.add(task.id)
        wanted = task.id not in self._cancelled
        self._cancelled.discard(task.id)
        return wanted

    def cancel(self, number: int) -> None:
        """Cancel a task. If it was already sent to a worker, the worker trains it, but its outcome is discarded."""
        if number not in self._tasks:
            return
        for waiting in self._waiting:
            if any(entry[1] == number for entry in waiting):
                waiting[:] = [entry for entry in waiting if entry[1] != number]
                heapq.heapify(waiting)
                del self._tasks[number]
                self._alone.discard(number)
                return
        self._cancelled.add(number)

    def record_duration(self, seconds: float, work: float) -> None:
        """Record the duration of a call and its amount of work."""
        self._pace = seconds / work

    def has_waiting(self, group: int) -> bool:
        """Return True if a task waits for a worker of the group."""
        return bool(self._waiting[group])

    def take(self, group: int, places: int) -> list[Task]:
        """Choose the tasks of the next call to a worker. Remove them from the queue and return them.

        They are the task that is due first and, if tasks are short, some of the tasks that are due next.

        Args:
            group: The worker group.
            places: The number of calls that the workers of the group can have together. A call gets at most the number
                of waiting tasks divided by `places`, or `stack` tasks if this is more.
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
