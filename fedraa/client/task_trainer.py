"""The interface of a worker's trainer."""

from collections.abc import Sequence
from typing import Protocol

from fedraa.client.trainer import Work
from fedraa.messages import Update


class TaskTrainer(Protocol):
    """The interface of `Trainer`, which documents the methods.

    In a run with local privacy or an attack, another trainer wraps `Trainer`.
    """

    def train_all(self, work: Sequence[Work]) -> list[Update]: ...

    def reset(self) -> None: ...
