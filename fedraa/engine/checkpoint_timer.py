"""A timer that determines when a run writes a checkpoint."""

import time

from fedraa.messages import State

# If `checkpoint_every` is not set, the pause after a checkpoint lasts at least CHECKPOINT_INTERVAL_S. It also lasts at
# least CHECKPOINT_PAUSE_FACTOR times as long as the checkpoint took. Checkpoints thus take at most 5 % of the time.
CHECKPOINT_INTERVAL_S = 10.0
CHECKPOINT_PAUSE_FACTOR = 20


class CheckpointTimer:
    """A timer of checkpoints. The first one is due at the start, each further one `every` server steps later.

    If `every` is None, the next checkpoint is due after a pause in real time. The pause lasts `CHECKPOINT_INTERVAL_S`,
    or `CHECKPOINT_PAUSE_FACTOR` times as long as the last checkpoint took, whichever is longer.

    Args:
        every: The number of server steps between checkpoints, or None.
    """

    def __init__(self, every: int | None) -> None:
        self.every = every
        self._last_step = -1
        self._started_at = 0.0
        self._next_at = 0.0

    def due(self, step: int) -> bool:
        """Return True if a checkpoint of this server step is due now."""
        if self.every is None:
            return time.monotonic() >= self._next_at
        return step != self._last_step and step % self.every == 0

    def start(self, step: int) -> None:
        """Record that the checkpoint of a server step begins.

        Call this before the timer's state is saved in the checkpoint.
        """
        self._last_step = step
        self._started_at = time.monotonic()

    def finish(self, seconds: float) -> None:
        """Begin the pause until the next checkpoint, after the newest one was written in this number of seconds."""
        now = time.monotonic()
        longest = max(seconds, now - self._started_at)
        self._next_at = now + max(CHECKPOINT_INTERVAL_S, CHECKPOINT_PAUSE_FACTOR * longest)

    def state(self) -> State:
        return {"last_step": self._last_step}

    def restore(self, state: State) -> None:
        self._last_step = state["last_step"]
