"""Queues of the tasks that wait for workers. Several short tasks are sent in one call."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable

from fedraa.client.batched_trainer import stack_row
from fedraa.messages import Index, Task

# Tasks are added to a call until the call takes about this time. Longer calls would save little, because sending a call
# costs only milliseconds.
GROUP_SECONDS = 0.1
# The answer to a call of several tasks has at most this size.
GROUP_BYTES = 16 * 2**20


class Queues:
    """A queue of tasks for each worker group, ordered by due time.

    Several short tasks are sent in one call. The last call shows how many seconds a unit of work takes. A task's
    predicted duration is its work times these seconds.

    Args:
        groups: The number of worker groups.
        group_of: The group of each client; None if there is only one group.
        work: Returns the amount of work of a task. The amount is roughly proportional to the duration of the task.
        stack: The number of tasks that a worker trains as one batched computation.
    """

    def __init__(self, groups: int, group_of: Index | None, work: Callable[[Task], float], stack: int = 1) -> None:
        self._group_of = group_of
        self._work = work
        self._stack = stack
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(groups)]
        self._alone: set[int] = set()
        # Tasks that were cancelled after a worker got them. Their outcomes are discarded.
        self._cancelled: set[int] = set()
        # The duration of the last call, in seconds per unit of work.
        self._pace = math.inf

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        self.again([task])

    def again(self, tasks: Iterable[Task], *, alone: bool = False) -> None:
        """Put unfinished tasks into the queues again. If `alone` is True, each is sent in a separate call.

        Cancelled tasks are removed, because their outcomes would be discarded.
        """
        for task in tasks:
            if task.id in self._cancelled:
                self.ended(task, well=True)
                continue
            if alone:
                self._alone.add(task.id)
            group = 0
            if self._group_of is not None:
                group = int(self._group_of[task.client])
            heapq.heappush(self._waiting[group], (self._tasks[task.id][1], task.id))

    def ended(self, task: Task, *, well: bool) -> bool:
        """Remove an ended task. Return False if the task was cancelled: its outcome must then be discarded.

        A task that failed (`well` is False) gets a separate call if it is submitted again.
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
        """Cancel a task. If a worker already has the task, only its outcome is discarded."""
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
        """Record the seconds of a call and its amount of work, for later predictions."""
        self._pace = seconds / work

    def has_waiting(self, group: int) -> bool:
        """Return True if a task waits for a worker of the group."""
        return bool(self._waiting[group])

    def take(self, group: int, places: int) -> list[Task]:
        """Remove and return the tasks of the next call: the next due task, and further tasks while the call is short.

        A call gets at most max(waiting tasks / places, stack) tasks. A worker trains `stack` tasks as one batch, in
        which each task needs another row. Tasks that would need an additional batch wait for another call.

        Args:
            group: The worker group.
            places: The number of calls that the group's workers can have at the same time.
        """
        waiting = self._waiting[group]
        share = len(waiting) // places
        batches = max(1, share // self._stack)
        rows: Counter[int] = Counter()
        left: list[tuple[float, int]] = []
        tasks: list[Task] = []
        seconds = size = 0.0
        while waiting:
            number = waiting[0][1]
            task, _ = self._tasks[number]
            row = stack_row(task, self._stack)
            if self._stack > 1 and rows[row] == batches:
                left.append(heapq.heappop(waiting))
                continue
            seconds += self._pace * self._work(task)
            size += task.nbytes
            full = len(tasks) >= share or seconds > GROUP_SECONDS or size > GROUP_BYTES
            if (full and len(tasks) >= self._stack) or (tasks and number in self._alone):
                break
            heapq.heappop(waiting)
            tasks.append(task)
            rows[row] += 1
            if number in self._alone:
                break
        for entry in left:
            heapq.heappush(waiting, entry)
        return tasks
