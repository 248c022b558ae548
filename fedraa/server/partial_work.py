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
        partial: True if a client stops after the local steps that it can finish. Otherwise all of its work is lost.
        timing: The model of the time that tasks take.
    """

    closes_at: float
    partial: bool
    timing: Timing


@dataclass(frozen=True)
class Deadline:
    """The deadline of every round.

    Attributes:
        duration: Time from the start of a round to its deadline.
        partial: True if a client stops after the local steps that it can finish.
        timing: The model of the time that tasks take.
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
    share: float = 1.0,
) -> int | None:
    """Return the local steps of a task that its client can finish, or None for the whole task.

    A client that cannot finish one step also keeps the whole task, and loses it at the deadline.

    Args:
        end: The end of the round, None without a deadline.
        costs: The costs of tasks.
        widths: The shape of the submodel.
        decision: The decision to send the task.
        now: Time at which the task is sent.
        traffic: Bytes that the client receives and sends.
        share: The share of the submodel's computing that the client does.
    """
    if end is None or not end.partial:
        return None
    client = decision.client

    def is_in_time(cost: float) -> bool:
        return end.timing.due(client, decision.turn, now, cost) <= end.closes_at

    if is_in_time(costs.cost(widths, client, *traffic, now, share=share)):
        return None
    # The largest number of steps is found by bisection: `least` steps are in time, `most` steps are not.
    least = 0
    most = costs.count_steps(widths, client)
    while most - least > 1:
        middle = (least + most) // 2
        if is_in_time(costs.cost(widths, client, *traffic, now, middle, share)):
            least = middle
        else:
            most = middle
    if least == 0:
        return None
    return least
