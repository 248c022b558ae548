"""The settings of the event loop."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedraa.callbacks.events import Limits
from fedraa.devices.availability import Timing
from fedraa.server.update_checks import MaxNorm


@dataclass(frozen=True)
class LoopOptions:
    """The settings of a loop.

    Attributes:
        limits: The limits of the run.
        eval_every: The number of server steps between evaluations.
        checkpoint_every: The number of server steps between checkpoints. None: each checkpoint is due
            after a pause in real time, as `CheckpointTimer` describes.
        timing: The timing model, which gives the duration of each task.
        wall: True for the wall clock, False for the virtual clock.
        max_update_norm: The largest norm of an update that is accepted.
        main_metric: The metric that the progress of the run shows.
        personal_clients: The clients whose personal models are evaluated.
    """

    limits: Limits
    eval_every: int
    checkpoint_every: int | None
    timing: Timing
    wall: bool
    max_update_norm: MaxNorm
    main_metric: str = "accuracy"
    personal_clients: Sequence[int] = ()
