"""The modelled cost of one task."""

from typing import NamedTuple


class ModelledCost(NamedTuple):
    """The modelled cost of one task, before jitter.

    Attributes:
        duration: The duration on the run's clock.
        energy: The joules of the modelled device, even on the wall clock; None if no power is known.
        training: The times after the start of the task at which its training begins and ends. A split model trains
            during its transfers.
    """

    duration: float
    energy: float | None
    training: tuple[float, float]


def trained_share(training: tuple[float, float], elapsed: float) -> float:
    """Return the finished share of a task's training.

    Args:
        training: The times at which the training begins and ends, as in ModelledCost.
        elapsed: The time after the start of the task.
    """
    begin, end = training
    if elapsed >= end:
        return 1.0
    if elapsed <= begin:
        return 0.0
    return (elapsed - begin) / (end - begin)
