"""The worker actor: a Trainer in a process of its own."""

from typing import Any

import numpy.typing as npt
import ray
import torch

from actors.pool.serializer import Job
from fedraa.data import Federated
from fedraa.data.sources.clients import ReadEpoch
from fedraa.data.tree import Tree
from fedraa.engine.worker_spec import WorkerSpec, choose_device
from fedraa.errors import staying
from fedraa.evaluation.evaluator import Evaluator
from fedraa.messages import Evaluation, Task, Update, Vector


class Worker:
    """Trains what it is sent; any worker can train any client's task. `number` is its place among the workers.

    Arrays in arguments are views of the object store: nothing is copied on the way in.
    """

    def __init__(self, number: int, worker_spec: WorkerSpec, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self.number = number
        self._device = choose_device(device)
        self._worker_spec = worker_spec
        self._trainer = worker_spec.trainer(self._device)
        self._evaluator: Evaluator | None = None

    def started(self) -> str:
        """The id of the node that it is on; answers as soon as the worker is there."""
        return str(ray.get_runtime_context().get_node_id())

    def train_all(self, jobs: list[Job], *shared_args: Any) -> list[Update]:
        """Trains tasks one after another, or as many at a time as a stack holds; `shared_args` are what they share.

        What is on shards of the server is fetched there, and the answer taken there. Raises what the training raises.
        """
        try:
            with staying():
                return self._train_all(jobs, shared_args)
        except Exception:  # whatever a client's own code does
            self._trainer.reset()
            raise

    def _train_all(self, jobs: list[Job], shared_args: tuple[Any, ...]) -> list[Update]:
        updates, height = [], self._worker_spec.stack
        for start in range(0, len(jobs), height):
            some = jobs[start : start + height]
            work = [job.work(shared_args, self._worker_spec.source) for job in some]
            trained = [self.train(*work[0])] if height == 1 else self._trainer.train_all(work)
            updates += [job.answer(update, shared_args) for job, update in zip(some, trained, strict=True)]
        return updates

    def train(self, task: Task, x: Tree, y: npt.NDArray[Any], read_epoch: ReadEpoch | None = None) -> Update:
        """Train one task on its client's shard."""
        return self._trainer.train(task, x, y, read_epoch)

    def evaluate(self, params: Vector, data: Federated) -> Evaluation:
        if self._evaluator is None:
            self._evaluator = self._worker_spec.evaluator(data, self._device)
        return self._evaluator.evaluate(params)
