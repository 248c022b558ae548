"""The deadline of a round, and the part of a task that a client can finish before it."""

from dataclasses import dataclass

from fedraa.devices.availability import Timing
from fedraa.devices.costs import CostModel, Widths
from fedraa.ledger.dispatch import Dispatch


@dataclass(frozen=True)
class RoundEnd:
    """The end of one round.

    Attributes:
        closes_at: Time of the deadline.
        partial: True if a late client sends the local steps that it can finish. False if all of its work is lost.
        timing: The timing model, which gives the duration of each task.
    """

    closes_at: float
    partial: bool
    timing: Timing


@dataclass(frozen=True)
class Deadline:
    """The deadline of every round.

    Attributes:
        duration: Time from the start of a round to its deadline.
        partial: True if a late client sends the local steps that it can finish. False if all of its work is lost.
        timing: The timing model, which gives the duration of each task.
    """

    duration: float
    partial: bool
    timing: Timing

    def end_of(self, started: float) -> RoundEnd:
        """Return the end of the round that began at this time."""
        return RoundEnd(started + self.duration, self.partial, self.timing)


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

    If the client cannot finish even one step, the result is also None, and the whole task is lost at the deadline.

    Args:
        end: The end of the round, None without a deadline.
        costs: The costs of tasks.
        widths: The shape of the submodel.
        decision: The decision to send the task.
        now: Time at which the task is sent.
        traffic: Bytes that the client receives and sends.
        work: FLOPs of the task, as a share of the FLOPs for training the whole submodel.
    """
    if end is None or not end.partial:
        return None
    client = decision.client

    def is_in_time(cost: float) -> bool:
        return end.timing.due(client, decision.turn, now, cost) <= end.closes_at

    if is_in_time(costs.cost(widths, client, *traffic, now, None, work)):
        return None
    # Find the largest number of steps by bisection: `least` steps can be finished in time, `most` steps cannot.
    least = 0
    most = costs.count_steps(widths, client)
    while most - least > 1:
        middle = (least + most) // 2
        if is_in_time(costs.cost(widths, client, *traffic, now, middle, work)):
            least = middle
        else:
            most = middle
    if least == 0:
        return None
    return least
