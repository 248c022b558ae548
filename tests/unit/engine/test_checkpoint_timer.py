"""Checkpoints are due at multiples of a number of steps, or after a pause that depends on their duration."""

import pytest

from fedraa.engine import checkpoint_timer
from fedraa.engine.checkpoint_timer import CHECKPOINT_INTERVAL_S, CHECKPOINT_PAUSE_FACTOR, CheckpointTimer


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(checkpoint_timer, "time", clock)
    return clock


def test_due_by_steps_is_true_once_at_each_multiple() -> None:
    timer = CheckpointTimer(3)
    steps = []
    for step in (0, 0, 1, 2, 3, 3, 4, 6):
        if timer.due(step):
            timer.start(step)
            timer.finish(0.0)
            steps.append(step)
    assert steps == [0, 3, 6]


def test_due_by_steps_after_restore_does_not_repeat_the_last_checkpoint() -> None:
    timer = CheckpointTimer(3)
    timer.start(6)
    resumed = CheckpointTimer(3)
    resumed.restore(timer.state())
    assert not resumed.due(6)
    assert resumed.due(9)


@pytest.mark.parametrize(
    ("thread_seconds", "loop_seconds", "pause"),
    [
        (0.1, 0.1, CHECKPOINT_INTERVAL_S),
        (2.0, 0.1, CHECKPOINT_PAUSE_FACTOR * 2.0),
        (0.1, 3.0, CHECKPOINT_PAUSE_FACTOR * 3.0),
    ],
)
def test_due_by_time_waits_for_the_pause(
    clock: Clock, thread_seconds: float, loop_seconds: float, pause: float
) -> None:
    timer = CheckpointTimer(None)
    assert timer.due(0)
    timer.start(0)
    clock.now += loop_seconds
    timer.finish(thread_seconds)
    clock.now += pause - 0.01
    assert not timer.due(5)
    clock.now += 0.02
    assert timer.due(5)
