"""A callback that simulates that a run's process is killed: afterwards the run executes nothing and writes nothing."""

from fedraa.callbacks import Callback, Event


class Killed(BaseException):
    """The exception that simulates the death of a run's process."""


class KillAt(Callback):
    """A callback that raises Killed at the n-th commit of a run."""

    blocking = False

    def __init__(self, commit: int) -> None:
        self.left = commit

    def on_commit(self, event: Event) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed
