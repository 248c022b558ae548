"""The deadline of a round, and the part of a task that a client can finish before it."""

from dataclasses import dataclass, field
from typing import ClassVar

from fedraa.components.state import Stateful
from fedraa.devices.availability import Timing
from fedraa.devices.costs import CostModel, Widths
from fedraa.ledger.dispatch import Dispatch

# The measured time of a task is multiplied by this safety margin.
TIME_MARGIN = 1.25
# The assumed time of a lost task is this multiple of the time after which the task was lost.
LOST_TIME = 2.0


class RealPaces(Stateful):
    """The measured time per FLOP of each client's last task, for runs on the wall clock.

    The time includes waiting for a worker. For a lost task, the assumed time is at least LOST_TIME times the time
    until the loss, and not shorter than that of the client's task before.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_seconds",)

    def __init__(self) -> None:
        # Seconds per FLOP of each client that has trained.
        self._seconds: dict[int, float] = {}

    def record_update(self, client: int, flops: float, elapsed: float) -> None:
        """Record the time of a finished task with `flops` FLOPs."""
        self._seconds[client] = elapsed / flops

    def record_lost(self, client: int, flops: float, elapsed: float) -> None:
        """Record the time after which a task with `flops` FLOPs was lost."""
        self._seconds[client] = max(self._seconds.get(client, 0.0), LOST_TIME * elapsed / flops)

    def duration(self, client: int, flops: float) -> float:
        """Return TIME_MARGIN times the expected time of a task with `flops` FLOPs; 0 before the client's first task."""
        return TIME_MARGIN * self._seconds.get(client, 0.0) * flops


@dataclass(frozen=True)
class Deadline:
    """The rule for the deadline of every round.

    Attributes:
        duration: Time from the start of a round to its deadline.
        partial: True if a late client sends the local steps that it can finish. False if all of its work is lost.
        timing: The timing model, which gives the duration of each task.
        paces: The measured times of clients on the wall clock; None on the virtual clock.
    """

    duration: float
    partial: bool
    timing: Timing
    paces: RealPaces | None = field(default=None, compare=False)

    def end_of(self, started: float) -> "RoundEnd":
        """Return the deadline of a round that began at `started`."""
        return RoundEnd(self, started + self.duration)


@dataclass(frozen=True)
class RoundEnd:
    """The deadline of one round, at the time `closes_at`."""

    deadline: Deadline
    closes_at: float


def cut_task(
    end: RoundEnd | None,
    costs: CostModel,
    widths: Widths,
    decision: Dispatch,
    now: float,
    traffic: tuple[int, int],
    work: float = 1.0,
) -> int | None:
    """Return the number of local steps that a client can finish before the deadline, or None for the whole task.

    The result is also None if not even one step can be finished: the task is then lost. Steps can be finished if their
    modelled time ends before the deadline. On the wall clock, the measured time of two or more steps must also end
    before it.

    Args:
        end: The end of the round, None without a deadline.
        costs: The costs of tasks.
        widths: The shape of the submodel.
        decision: The decision to send the task.
        now: Time at which the task is sent.
        traffic: Bytes that the client receives and sends.
        work: FLOPs of the task, as a share of the FLOPs for training the whole submodel.
    """
    if end is None or not end.deadline.partial:
        return None
    deadline = end.deadline
    client = decision.client

    def is_in_time(steps: int | None) -> bool:
        cost = costs.cost(widths, client, *traffic, now, steps, work).duration
        if deadline.timing.due(client, decision.turn, now, cost) > end.closes_at:
            return False
        if deadline.paces is None or steps == 1:
            return True
        return now + deadline.paces.duration(client, costs.flops(widths, client, steps) * work) <= end.closes_at

    if is_in_time(None):
        return None
    # Bisection: `least` steps can be finished in time, `most` steps cannot.
    least = 0
    most = costs.count_steps(widths, client)
    while most - least > 1:
        middle = (least + most) // 2
        if is_in_time(middle):
            least = middle
        else:
            most = middle
    if least == 0:
        return None
    return least
