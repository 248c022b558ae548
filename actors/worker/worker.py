"""The actor of a worker: a trainer and an evaluator in a separate process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch

from actors.pool.serializer import Job
from fedraa.client.trainer import Work
from fedraa.engine.worker_spec import WorkerSpec, choose_device
from fedraa.errors import trap_system_exit
from fedraa.evaluation.evaluator import Evaluator
from fedraa.evaluation.personal import EvaluationData
from fedraa.messages import Evaluation, State, Update, Vector


class Worker:
    """An actor that trains tasks and evaluates models. Any worker can train the task of any client.

    A worker trains as fast as the machine allows. Other classes simulate the delays of devices:
      - CostModel.cost in fedraa/devices/costs.py gives the time of a task on the client's device.
      - Loop in fedraa/engine/loop.py applies an update when this time has passed on the run's clock.

    Array arguments are views of Ray's object store.

    Args:
        number: The index of the worker.
        worker_spec: The description from which the trainer and the evaluator are created.
        threads: The number of threads that PyTorch uses.
        device: The device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, number: int, worker_spec: WorkerSpec, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        self.number = number
        self._device = choose_device(device)
        self._worker_spec = worker_spec
        self._trainer = worker_spec.trainer(self._device)
        self._evaluator: Evaluator | None = None
        # The time of the end of the last call; None during a call.
        self._idle_since: float | None = time.monotonic()

    def started(self) -> str:
        """Return the id of the worker's node. The answer arrives after the worker has started."""
        return str(ray.get_runtime_context().get_node_id())

    def idle_seconds(self) -> float:
        """Return for how many seconds the worker has executed no call; 0 during a call."""
        idle_since = self._idle_since
        if idle_since is None:
            return 0.0
        return time.monotonic() - idle_since

    @contextmanager
    def _executing(self) -> Iterator[None]:
        """Count the worker as busy during the block."""
        self._idle_since = None
        try:
            yield
        finally:
            self._idle_since = time.monotonic()

    def train_all(self, jobs: list[Job], *shared_args: Any) -> list[Update]:
        """Train tasks in sequence, or several as one batched computation, and return their updates.

        An error of the training is raised unchanged.

        Args:
            jobs: The tasks.
            shared_args: Arguments to which tasks refer by index, such as a block of clients' data.
        """
        try:
            with self._executing(), trap_system_exit():
                return self._train_all(jobs, shared_args)
        # The user's code can raise any exception.
        except Exception:
            self._trainer.reset()
            raise

    def _train_all(self, jobs: list[Job], shared_args: tuple[Any, ...]) -> list[Update]:
        updates = []
        # The trainer divides tasks into stacks. Without stacks, the parameters of a task are fetched when it begins.
        at_once = len(jobs) if self._worker_spec.stack > 1 else 1
        for start in range(0, len(jobs), at_once):
            part = jobs[start : start + at_once]
            work = [job.work(shared_args, self._worker_spec.source) for job in part]
            updates += [job.answer(update, shared_args) for job, update in zip(part, self.train(work), strict=True)]
        return updates

    def train(self, work: list[Work]) -> list[Update]:
        """Train one task, or several as one batched computation."""
        return self._trainer.train_all(work)

    def evaluate(self, params: Vector, kept: State, data: EvaluationData) -> Evaluation:
        """Evaluate a model. The first call creates the evaluator.

        Args:
            params: The model [d].
            kept: The values that clients keep for their personal models.
            data: The evaluation data.
        """
        with self._executing(), trap_system_exit():
            if self._evaluator is None:
                self._evaluator = self._worker_spec.evaluator(data, self._device)
            return self._evaluator.evaluate(params, kept)
