"""Where tasks are trained. The in-process pool; the Ray one is its twin in `actors`."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from fedraa.data import Federated
from fedraa.local import Evaluator, Trainer
from fedraa.messages import Evaluation, Fault, Task, Update, Vector


class PendingEvaluation(Protocol):
    """An evaluation under way."""

    def done(self) -> bool: ...

    def result(self) -> Evaluation:
        """Waits for it."""


class Pool(Protocol):
    """Takes tasks, gives updates; a task that fails comes back as a Fault, for the loop to decide on."""

    def submit(self, task: Task, due: float) -> None:
        """Train the task some time; tasks due earlier go first."""

    def wait(self, task: int) -> Update | Fault:
        """The outcome of this very task, once there is one."""

    def ready(self, timeout: float) -> list[Update | Fault]:
        """The outcomes that arrived, in the order of arrival; waits up to `timeout` seconds for the first."""

    def evaluate(self, params: Vector) -> PendingEvaluation:
        """Starts an evaluation of the full model [d]."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Evaluated:
    """An evaluation that is there."""

    evaluation: Evaluation

    def done(self) -> bool:
        return True

    def result(self) -> Evaluation:
        return self.evaluation


class LocalPool:
    """Trains in this process, one task at a time, when its outcome is asked for."""

    def __init__(self, trainer: Trainer, evaluator: Evaluator, data: Federated) -> None:
        self._trainer = trainer
        self._evaluator = evaluator
        self._data = data
        self._tasks: OrderedDict[int, Task] = OrderedDict()

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task

    def wait(self, task: int) -> Update | Fault:
        work = self._tasks.pop(task)
        return self._trainer.train(work, *self._data.client(work.client))

    def ready(self, timeout: float) -> list[Update | Fault]:
        if not self._tasks:
            time.sleep(timeout)
            return []
        return [self.wait(next(iter(self._tasks)))]

    def evaluate(self, params: Vector) -> PendingEvaluation:
        return Evaluated(self._evaluator.evaluate(params))

    def close(self) -> None:
        self._tasks.clear()
