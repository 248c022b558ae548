"""The tasks that wait for workers, and which of them travel together."""

import heapq
import math
from collections.abc import Callable, Iterable

from fedraa.messages import Index, Task

GROUP_SECONDS = 0.1  # of training in one call, of more than one task: a call costs milliseconds
GROUP_BYTES = 8 * 2**20  # of answers to one call


class Queues:
    """A queue for each worker group, tasks due first in front; those of client n wait for group `group_of[n]`.

    Short tasks travel in groups, by the pace seen last, where many wait. `work` of a task is about proportional to
    how long it takes. Of tasks that are trained in stacks as many travel together as a `stack` holds.
    """

    def __init__(self, groups: int, group_of: Index | None, work: Callable[[Task], float], stack: int = 1) -> None:
        self._group_of, self._work, self._stack = group_of, work, stack
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(groups)]
        self._alone: set[int] = set()
        self._pace = math.inf  # seconds per unit of work

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        self.again([task])

    def again(self, tasks: Iterable[Task], *, alone: bool = False) -> None:
        """Tasks that have not ended wait again; `alone`: each travels by itself from now on."""
        for task in tasks:
            if alone:
                self._alone.add(task.id)
            group = 0 if self._group_of is None else int(self._group_of[task.client])
            heapq.heappush(self._waiting[group], (self._tasks[task.id][1], task.id))

    def ended(self, task: Task, *, well: bool) -> None:
        """The task waits no more. If it did not end well it may be submitted again, and travels alone then."""
        del self._tasks[task.id]
        if well:
            self._alone.discard(task.id)
        else:
            self._alone.add(task.id)

    def saw(self, seconds: float, work: float) -> None:
        """So much work took so long."""
        self._pace = seconds / work

    def waits(self, group: int) -> bool:
        """Whether any task waits for the worker group."""
        return bool(self._waiting[group])

    def take(self, group: int, places: int) -> list[Task]:
        """The task that is due first and, if they are short, some of the next: a fair share for `places` calls."""
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
