"""A queue of tasks in the order of their due times."""

import heapq
from math import inf


class DueQueue:
    """A queue of task numbers, sorted by due time, then by number."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_due(self) -> float:
        """The due time of the first task; infinite if the queue is empty."""
        return self._heap[0][0] if self._heap else inf

    @property
    def next_task(self) -> int:
        """The number of the task with the earliest due time."""
        return self._heap[0][1]

    def push(self, due: float, task: int) -> None:
        heapq.heappush(self._heap, (due, task))

    def discard(self, task: int) -> None:
        """Remove a task if it is in the queue."""
        self._heap = [entry for entry in self._heap if entry[1] != task]
        heapq.heapify(self._heap)

    def pop(self) -> tuple[float, int]:
        """Remove the first task. Return its due time and its number."""
        return heapq.heappop(self._heap)
