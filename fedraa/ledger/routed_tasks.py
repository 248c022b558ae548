"""Queues of an asynchronous server that routes its tasks to clients with fixed probabilities."""

from collections.abc import Collection, Sequence
from typing import ClassVar

import numpy as np

from fedraa.components.state import Stateful
from fedraa.messages import Floats
from fedraa.rng import generator


class RoutedTasks(Stateful):
    """A fixed number of tasks in queues, one queue per client. When a task ends, a new one goes to a random client.

    A task waits in a queue while its client trains another task. Tasks of a quarantined client go to other clients.

    Args:
        probabilities: The probability with which a task goes to each client [N].
        tasks: Number of tasks, at most N. The first ones go to different clients.
        seed: Seed of the run.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_queues",)

    def __init__(self, probabilities: Floats, tasks: int, seed: int) -> None:
        self.probabilities = probabilities
        # The division makes the last limit exactly 1 in spite of rounding, so that every random number is below it.
        limits = np.cumsum(probabilities)
        self._limits = limits / limits[-1]
        self._tasks = tasks
        self._seed = seed
        # Number of tasks at each client, including the one that it trains.
        self._queues = np.zeros(len(probabilities), np.int64)

    def first_clients(self) -> Sequence[int]:
        """Return the clients that train first."""
        rng = generator(self._seed, "routing start")
        drawn = rng.choice(len(self._queues), self._tasks, replace=False, p=self.probabilities)
        self._queues[drawn] = 1
        clients: list[int] = drawn.tolist()
        return clients

    def next_clients(self, client: int, task: int, left_out: Collection[int]) -> tuple[int, ...]:
        """Return the clients that start a task after a task of `client` has ended: none, one or several.

        Args:
            client: The client of the ended task.
            task: The number of the task.
            left_out: Quarantined clients.
        """
        if len(left_out) == len(self._queues):
            return ()
        started = []
        moved = 1
        self._queues[client] -= 1
        if client in left_out:
            moved += int(self._queues[client])
            self._queues[client] = 0
        elif self._queues[client] > 0:
            started.append(client)
        rng = generator(self._seed, "routing", task)
        for _ in range(moved):
            drawn = self._draw_client(rng, left_out)
            self._queues[drawn] += 1
            if self._queues[drawn] == 1:
                started.append(drawn)
        return tuple(started)

    def _draw_client(self, rng: np.random.Generator, left_out: Collection[int]) -> int:
        while True:
            drawn = int(np.searchsorted(self._limits, rng.random(), side="right"))
            if drawn not in left_out:
                return drawn
