"""The totals of a log: tasks, bytes, FLOPs, staleness and failures."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedraa.rundir.event_reader import Event, not_an_event_error, read_events
from fedraa.rundir.failures import Failures

MAX_COUNT = 2**63
# `RunStats.add` raises these errors for values that fedraa never writes.
WRONG_VALUES = (KeyError, TypeError, OverflowError)


class RunStats:
    """Totals of the events so far.

    Attributes:
        events: The number of events.
        step: The value of `step` in the last event that has one: the number of server updates, or of rounds.
        t: The time of the last event on the run's clock.
        wall: The real seconds of the last event.
        committed: The number of applied updates.
        lost: The number of tasks that were too late for their round.
        faults: The number of faults of workers.
        rounds: The number of closed rounds.
        bytes_down: The bytes of all sent tasks.
        bytes_up: The bytes of all applied updates.
        flops: Training FLOPs of all applied updates and of the finished parts of lost tasks, in the order of the log.
        energy: Modelled joules of all sent tasks, added in the order of the log; None if the devices have no watts.
        staleness_sum: The sum of the staleness of all updates.
        staleness_max: The largest staleness.
        failures: The tasks that failed by their clients' fault.
        end: The last event of a run that has ended; None until then.
    """

    def __init__(self) -> None:
        self.events = 0
        self.step = 0
        self.t = 0.0
        self.wall = 0.0
        self.committed = 0
        self.lost = 0
        self.faults = 0
        self.rounds = 0
        self.bytes_down = 0
        self.bytes_up = 0
        self.flops = 0.0
        self.energy: float | None = None
        self.staleness_sum = 0
        self.staleness_max = 0
        self.failures = Failures()
        self.end: Event | None = None

    @property
    def staleness_mean(self) -> float | None:
        """The mean staleness of all updates; None before the first one."""
        if self.committed == 0:
            return None
        return self.staleness_sum / self.committed

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event.

        Raises:
            KeyError, TypeError, OverflowError: The event has values that fedraa never writes. The totals do not change.
        """
        t = float_number(event["t"])
        wall = float_number(event["wall"])
        step = whole_number(event.get("step", self.step))
        match event["kind"]:
            case "dispatch":
                self._add_dispatch(event)
            case "commit":
                self._add_commit(event)
            case "lost":
                flops = float_number(event["flops"])
                self.lost += 1
                self.flops += flops
            case "drop":
                self.failures.add(event)
            case "fault":
                self.faults += 1
            case "round":
                self.rounds += 1
            case "end":
                self.end = dict(event)
        self.events += 1
        # Evaluations are written late, and a client can train the weights of an earlier step again.
        self.step = max(self.step, step)
        self.t = max(self.t, t)
        self.wall = wall

    def _add_dispatch(self, event: Mapping[str, Any]) -> None:
        bytes_down = whole_number(event["bytes_down"])
        if "energy" in event:
            self.energy = (self.energy or 0.0) + float_number(event["energy"])
        self.bytes_down += bytes_down

    def _add_commit(self, event: Mapping[str, Any]) -> None:
        bytes_up = whole_number(event["bytes_up"])
        staleness = whole_number(event["staleness"])
        flops = float_number(event["flops"])
        self.committed += 1
        self.bytes_up += bytes_up
        self.flops += flops
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)


def read_stats(directory: Path, *, partial: bool = False) -> RunStats:
    """Return the totals of a run's log. The arguments and the error are those of `add_events`."""
    stats = RunStats()
    add_events(directory, stats.add, partial=partial)
    return stats


def add_events(directory: Path, add: Callable[[Event], None], *, partial: bool) -> None:
    """Call `add` with each event of a run's log.

    Args:
        directory: The run directory.
        add: A function that may raise `WRONG_VALUES`.
        partial: True to skip an incomplete last line.

    Raises:
        InputError: A line is not an event of a run. The error names the first such line.
    """
    for number, event in enumerate(read_events(directory, partial=partial), 1):
        try:
            add(event)
        except WRONG_VALUES:
            raise not_an_event_error(directory, number) from None


def float_number(value: object) -> float:
    """Return the value as a float.

    Raises:
        TypeError: It is not a number.
        OverflowError: It is an integer that no float can hold.
    """
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"got {value!r}; expected a number")


def whole_number(value: object) -> int:
    """Check that the value is a whole number, not negative, and below 2 ** 63, and return it.

    Raises TypeError if the value is anything else.
    """
    if isinstance(value, int) and 0 <= value < MAX_COUNT:
        return value
    raise TypeError(f"got {value!r}; expected a whole number from 0")
