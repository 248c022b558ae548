"""The states of a run, and the reasons for its end."""

from enum import Enum, auto
from typing import Final, Literal

StopReason = Literal["steps", "time", "accuracy", "target", "callback", "participations"]
# The stop reason of a run that a callback ended.
CALLBACK: Final = "callback"


class LoopState(Enum):
    """The state of a run. A run passes through these states in order."""

    # Clients get tasks, and updates are applied.
    RUNNING = auto()
    # A limit or a callback ended the run: only evaluations are left.
    DRAINING = auto()
    # Every evaluation is in the log, and `stop_reason` is known.
    FINISHED = auto()
