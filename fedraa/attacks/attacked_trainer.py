"""The trainer of a worker in a run with an attack."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.attacks.attack import AttackPlan
from fedraa.client.task_trainer import TaskTrainer
from fedraa.client.trainer import Work
from fedraa.data.tree import Tree
from fedraa.messages import Task, Update


class AttackedTrainer:
    """A trainer that changes the data and the deltas of attackers, and trains honest clients as usual."""

    def __init__(self, trainer: TaskTrainer, plan: AttackPlan) -> None:
        self._trainer = trainer
        self._plan = plan

    def train_all(self, work: Sequence[Work]) -> list[Update]:
        updates = self._trainer.train_all([self._poison(one) for one in work])
        return [self._forge(one.task, update) for one, update in zip(work, updates, strict=True)]

    def reset(self) -> None:
        self._trainer.reset()

    def _poison(self, work: Work) -> Work:
        client = work.task.client
        if client not in self._plan.attackers:
            return work
        x, y = self._plan.poison(client, work.x, work.y)
        read = work.read_epoch
        if read is None:
            return Work(work.task, x, y)

        def read_poisoned(epoch: int) -> tuple[Tree, npt.NDArray[Any]]:
            return self._plan.poison(client, *read(epoch))

        return Work(work.task, x, y, read_poisoned)

    def _forge(self, task: Task, update: Update) -> Update:
        if task.client not in self._plan.attackers:
            return update
        forged = self._plan.forge(task.client, task.turn, update.params - task.params)
        return replace(update, params=np.asarray(task.params + forged, np.float32))
