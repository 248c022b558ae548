"""The worker actor: a Trainer in a process of its own."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

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

    def started(self) -> None:
        """Answers as soon as the worker is there."""

    def train(
        self,
        header: Task,
        params: Vector,
        x: npt.NDArray[np.generic],
        y: npt.NDArray[np.int64],
        rows: tuple[int, int],
    ) -> Update:
        """Trains the task (its `params` travel beside it) on rows [start, end) of a block of data."""
        start, end = rows
        return self._trainer.train(replace(header, params=params), x[start:end], y[start:end])

    def evaluate(self, params: Vector, data: Federated) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = self._recipe.evaluator(data, self._device)
        return self._evaluator.evaluate(params)
