"""The interface of a worker's trainer."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from fedraa.client.trainer import Work
from fedraa.data.sources.clients import ReadEpoch
from fedraa.data.tree import Tree
from fedraa.messages import Task, Update


class TaskTrainer(Protocol):
    """The interface of `Trainer`, which documents the methods.

    In a run with local privacy or an attack, another trainer wraps `Trainer`.
    """

    def train(self, task: Task, x: Tree, y: npt.NDArray[Any], read_epoch: ReadEpoch | None = None) -> Update: ...

    def train_all(self, work: Sequence[Work]) -> list[Update]: ...

    def reset(self) -> None: ...
