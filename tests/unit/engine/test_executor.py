"""The local executor trains short tasks ahead on the virtual clock, and only there."""

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from fedraa.client import Work
from fedraa.engine import executor
from fedraa.engine.executor import LocalExecutor
from fedraa.messages import Task, Update

SIZE = 10


class SleepingTrainer:
    """A trainer that returns its input after a pause and records the numbers of the tasks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.trained: list[int] = []

    def train_all(self, work: Sequence[Work]) -> list[Update]:
        time.sleep(self.seconds)
        self.trained += [one.task.id for one in work]
        return [Update(one.task.id, one.task.client, 0, 0, one.task.params, 1, 0.0, 0.0) for one in work]


class Shards:
    def shard(self, client: int, turn: int) -> tuple[Any, Any, None]:
        return np.zeros((1, 1), np.float32), np.zeros(1, np.int64), None


def make_executor(dues: Sequence[float], *, seconds: float = 0.0) -> tuple[LocalExecutor, SleepingTrainer]:
    """Return an executor with one task for each due time, and its trainer."""
    trainer = SleepingTrainer(seconds)
    made = LocalExecutor(cast(Any, trainer), cast(Any, None), cast(Any, Shards()))
    for number, due in enumerate(dues):
        task = Task(number, number, 0, 0, 0, 0, (), np.zeros(SIZE, np.float32), lr=0.1, cost=due)
        made.submit(task, due)
    return made, trainer


def test_wait_trains_short_tasks_ahead_in_the_order_of_due_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "AHEAD_S", 10.0)
    made, trainer = make_executor([3.0, 1.0, 2.0])
    outcomes = [made.wait(number, 0.1) for number in (1, 2, 0)]
    assert [outcome.task for outcome in outcomes if isinstance(outcome, Update)] == [1, 2, 0]
    assert trainer.trained == [1, 2, 0]


def test_wait_for_a_long_task_trains_only_this_task() -> None:
    made, trainer = make_executor([1.0, 2.0], seconds=2 * executor.AHEAD_S)
    made.wait(0, 0.1)
    assert trainer.trained == [0]


def test_wait_trains_ahead_only_up_to_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "AHEAD_S", 10.0)
    monkeypatch.setattr(executor, "AHEAD_BYTES", 2 * 4 * SIZE)
    made, trainer = make_executor([1.0, 2.0, 3.0, 4.0])
    made.wait(0, 0.1)
    assert trainer.trained == [0, 1]


def test_ready_outcomes_trains_only_one_task_on_the_wall_clock() -> None:
    made, trainer = make_executor([1.0, 2.0])
    assert len(made.ready_outcomes(0.1)) == 1
    assert trainer.trained == [0]
