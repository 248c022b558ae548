"""The clock of a run: virtual, or the wall clock."""

import time

from fedraa.devices.availability import Timing
from fedraa.messages import State, Task


class RunClock:
    """The time of a run from 0 on: cost units on the virtual clock, seconds on the wall clock.

    Args:
        timing: The timing model, which gives the duration of each task.
        wall: True for the wall clock, False for the virtual clock.
    """

    def __init__(self, timing: Timing, *, wall: bool) -> None:
        self.wall = wall
        self.now = 0.0
        """The time of the loop's last decision. Only the loop changes it."""
        self._timing = timing
        self._started_at = time.monotonic()

    def elapsed_seconds(self) -> float:
        """Return the real seconds since the start. Interruptions of the run do not count."""
        return time.monotonic() - self._started_at

    def exclude(self, seconds: float) -> None:
        """Exclude an interruption of `seconds` from the real time."""
        self._started_at += seconds

    def due(self, task: Task) -> float:
        """Return the end time of a task that is sent now."""
        return self._timing.due(task.client, task.turn, self.now, task.cost)

    def state(self) -> State:
        return {"now": self.now, "elapsed": self.elapsed_seconds()}

    def restore(self, state: State) -> None:
        self.now = state["now"]
        self._started_at = time.monotonic() - state["elapsed"]
