"""Simulate that a run's process is killed."""

from fedraa.callbacks import Callback, Event


class Killed(BaseException):
    """The simulated death of a run's process."""


class KillAt(Callback):
    """A callback that raises Killed at the n-th commit of a run."""

    blocking = False

    def __init__(self, commit: int) -> None:
        self.left = commit

    def on_commit(self, event: Event) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed
