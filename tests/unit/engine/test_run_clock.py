"""The clock of a run continues after a resumption from its last time."""

import numpy as np
import pytest

from fedraa.devices.availability import Timing
from fedraa.engine import run_clock
from fedraa.engine.run_clock import RunClock
from fedraa.messages import Task

TASK = Task(0, 3, 0, 0, 0, 0, (), np.zeros(1, np.float32), lr=0.1, cost=2.5)


def test_due_time_is_now_plus_the_cost() -> None:
    clock = RunClock(Timing(seed=0, jitter=0.0), wall=False)
    clock.now = 4.0
    assert clock.due(TASK) == 6.5


class RealTime:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_restore_excludes_the_time_between_interruption_and_resumption(monkeypatch: pytest.MonkeyPatch) -> None:
    real = RealTime()
    monkeypatch.setattr(run_clock, "time", real)
    clock = RunClock(Timing(0, 0.0), wall=True)
    real.now += 7.0
    clock.now = 6.5
    state = clock.state()
    real.now += 500.0
    resumed = RunClock(Timing(0, 0.0), wall=True)
    assert resumed.elapsed_seconds() == 0
    resumed.restore(state)
    real.now += 1.0
    assert resumed.now == 6.5
    assert resumed.elapsed_seconds() == 8.0
