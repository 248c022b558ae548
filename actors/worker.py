"""The worker actor: a Trainer in a process of its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch

from actors.jobs import Job
from fedraa.data import Federated
from fedraa.local import Evaluator, Recipe, choose_device
from fedraa.messages import Evaluation, Task, Update, Vector


class Worker:
    """Trains what it is sent; any worker can train any client's task. `seat` is its place in the pool.

    Arrays in arguments are views of the object store: nothing is copied on the way in.
    """

    def __init__(self, seat: int, recipe: Recipe, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self.seat = seat
        self._device = choose_device(device)
        self._recipe = recipe
        self._trainer = recipe.trainer(self._device)
        self._evaluator: Evaluator | None = None

    def started(self) -> str:
        """The id of the node that it is on; answers as soon as the worker is there."""
        return str(ray.get_runtime_context().get_node_id())

    def train_all(self, jobs: list[Job], *beside: Any) -> list[Update]:
        """Trains one task after another; what they share travels `beside` them.

        What lies on shards of the server is fetched there, and the answer taken there.
        """
        updates = []
        for job in jobs:
            start, end = job.rows
            task, x, y = job.task(beside), beside[job.x][start:end], beside[job.y][start:end]
            if not job.far:
                updates.append(self.train(task, x, y))
                continue
            route, *cuts = (beside[number] for number in job.far)
            updates.append(route.push(self.train(replace(task, params=route.pull(cuts)), x, y), cuts))
        return updates

    def train(self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Update:
        """Trains one task on its client's shard."""
        return self._trainer.train(task, x, y)

    def evaluate(self, params: Vector, data: Federated) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = self._recipe.evaluator(data, self._device)
        return self._evaluator.evaluate(params)
