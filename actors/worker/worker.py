"""The worker actor: a Trainer in a process of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch

from actors.pool.serializer import Job
from fedraa.client import Evaluator, Work, WorkerSpec, choose_device
from fedraa.data import Federated
from fedraa.messages import Evaluation, Task, Update, Vector


class Worker:
    """Trains what it is sent; any worker can train any client's task. `handle` is its place in the pool.

    Arrays in arguments are views of the object store: nothing is copied on the way in.
    """

    def __init__(self, handle: int, worker_spec: WorkerSpec, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self.handle = handle
        self._device = choose_device(device)
        self._worker_spec = worker_spec
        self._trainer = worker_spec.trainer(self._device)
        self._evaluator: Evaluator | None = None

    def started(self) -> str:
        """The id of the node that it is on; answers as soon as the worker is there."""
        return str(ray.get_runtime_context().get_node_id())

    def train_all(self, jobs: list[Job], *shared_args: Any) -> list[Update]:
        """Trains tasks one after another, or as many at a time as a stack holds; `shared_args` are what they share.

        What lies on shards of the server is fetched there, and the answer taken there.
        """
        updates, height = [], self._worker_spec.stack
        for start in range(0, len(jobs), height):
            some = jobs[start : start + height]
            work = [_work(job, shared_args) for job in some]
            trained = [self.train(*work[0])] if height == 1 else self._trainer.train_all(work)
            updates += [_answer(job, update, shared_args) for job, update in zip(some, trained, strict=True)]
        return updates

    def train(self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Update:
        """Trains one task on its client's shard."""
        return self._trainer.train(task, x, y)

    def evaluate(self, params: Vector, data: Federated) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = self._worker_spec.evaluator(data, self._device)
        return self._evaluator.evaluate(params)


def _work(job: Job, shared_args: Sequence[Any]) -> Work:
    """The task, its buffer fetched from shards of the server if it is there, and the client's shard."""
    start, end = job.rows
    task = job.task(shared_args)
    if job.remote_args:
        route, *cuts = (shared_args[number] for number in job.remote_args)
        task = replace(task, params=route.pull(cuts))
    return Work(task, shared_args[job.x][start:end], shared_args[job.y][start:end])


def _answer(job: Job, update: Update, shared_args: Sequence[Any]) -> Update:
    """The update; if its buffer is for shards of the server, a receipt from there in its place."""
    if not job.remote_args:
        return update
    route, *cuts = (shared_args[number] for number in job.remote_args)
    answer: Update = route.push(update, cuts)
    return answer
