"""The tasks, the rounds and the newest failures of a log, as columns."""

from array import array
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedraa.messages import Floats
from fedraa.rundir.event_reader import not_an_event_error, read_events
from fedraa.rundir.run_stats import WRONG_VALUES, float_number, whole_number

if TYPE_CHECKING:
    import pandas as pd

# The number of newest faults and failed tasks that a timeline keeps.
MAX_FAILURES = 200
ROUND_COLUMNS = ("round", "coverage_min", "coverage_max", "uncovered")


class Fate(IntEnum):
    """The way in which a task ended."""

    RUNNING = 0
    """The task is in flight."""
    DONE = 1
    """The update of the task was applied."""
    DROPPED = 2
    """The task failed by its client's fault."""
    LOST = 3
    """The task was too late for its round."""


class TaskTimeline:
    """The tasks of a log as columns, in the order of dispatch, and the rounds of the log.

    Attributes:
        task: The numbers of the tasks.
        client: The clients of the tasks.
        fragment: The fragments, or the numbers that identify sampled submodels.
        start: The times of dispatch on the run's clock.
        end: The times of commit or drop; NaN while the task is in flight.
        cost: The expected costs; NaN if the log does not have them.
        bytes_down: The bytes that the server sent.
        bytes_up: The bytes of the update; 0 without an update.
        staleness: The staleness of the update; 0 without an update.
        fate: A `Fate` for each task.
        commits: The indices in these columns of tasks with applied updates, in the order of the commits.
        round_events: The event of each round.
        failures: The newest faults and drops, with `kind`, `t`, `wall`, `error`, `action`, `task`, `client`, `worker`.
        t: The latest time of all events.
    """

    def __init__(self) -> None:
        self.task = array("q")
        self.client = array("q")
        self.fragment = array("q")
        self.start = array("d")
        self.end = array("d")
        self.cost = array("d")
        self.bytes_down = array("q")
        self.bytes_up = array("q")
        self.staleness = array("q")
        self.fate = array("b")
        self.commits = array("q")
        # The indices of the committed and lost tasks. `bytes_until` sums their traffic.
        self.with_traffic = array("q")
        self.round_events: list[dict[str, Any]] = []
        self.failures: deque[dict[str, Any]] = deque(maxlen=MAX_FAILURES)
        self.t = 0.0
        # The total time of all finished tasks, and the sum of the start times of all tasks in flight.
        self._busy = 0.0
        self._starts = 0.0
        # Maps the number of each running task to its index in the columns.
        self._in_flight: dict[int, int] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event.

        Raises:
            KeyError, TypeError, OverflowError: The event has values that fedraa never writes. The columns do not
                change.
        """
        t = float_number(event["t"])
        match event["kind"]:
            case "dispatch":
                self._add_dispatch(event, t)
            case "commit":
                self._add_commit(event, t)
            case "drop":
                failure = _failure_fields(event)
                self._end_task(self._in_flight.pop(event["task"]), t, Fate.DROPPED)
                self.failures.append(failure)
            case "lost":
                place = self._in_flight.pop(event["task"])
                self._end_task(place, t, Fate.LOST)
                self.with_traffic.append(place)
            case "fault":
                self.failures.append(_failure_fields(event))
            case "round":
                columns = {name: whole_number(event[name]) for name in ROUND_COLUMNS}
                self.round_events.append({**event, **columns})
        self.t = max(self.t, t)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def idle_fraction(self, clients: int) -> float | None:
        """Return the fraction of the time in which a client had no task, averaged over clients.

        The result is None before any time has passed.
        """
        if not self.t:
            return None
        busy = self._busy + len(self._in_flight) * self.t - self._starts
        return 1 - busy / (clients * self.t)

    def bytes_until(self, t: Floats) -> Floats:
        """Return the bytes [K] of all tasks that were committed or lost before each time in `t` [K]."""
        places = np.array(self.with_traffic, np.int64)
        per_task = np.array(self.bytes_down)[places] + np.array(self.bytes_up)[places]
        sums = np.concatenate(([0.0], np.cumsum(per_task, dtype=np.float64)))
        committed: Floats = sums[np.searchsorted(np.array(self.end)[places], t, side="right")]
        return committed

    def tasks(self) -> "pd.DataFrame":
        """Return a row per task: task, client, fragment, start, end, cost, bytes_down, bytes_up, staleness, done.

        Committed tasks come first, in the order of the commits. `end` is NaN for a task in flight.
        """
        # pandas is slow to import, and workers do without it.
        import pandas as pd

        columns = {
            "task": np.array(self.task),
            "client": np.array(self.client),
            "fragment": np.array(self.fragment),
            "start": np.array(self.start),
            "end": np.array(self.end),
            "cost": np.array(self.cost),
            "bytes_down": np.array(self.bytes_down),
            "bytes_up": np.array(self.bytes_up),
            "staleness": np.array(self.staleness),
        }
        done = np.array(self.fate) == Fate.DONE
        order = np.concatenate([np.array(self.commits), np.flatnonzero(~done)]).astype(np.int64)
        return pd.DataFrame({**columns, "done": done}).iloc[order].reset_index(drop=True)

    def rounds(self) -> "pd.DataFrame":
        """Return a row per round with the fields of its event; none for an asynchronous run."""
        import pandas as pd

        if not self.round_events:
            return pd.DataFrame(columns=ROUND_COLUMNS)
        return pd.DataFrame(self.round_events)

    def _add_dispatch(self, event: Mapping[str, Any], t: float) -> None:
        task = whole_number(event["task"])
        client = whole_number(event["client"])
        fragment = whole_number(event["fragment"])
        bytes_down = whole_number(event["bytes_down"])
        cost = float_number(event.get("cost", nan))
        self._in_flight[task] = len(self.start)
        self.task.append(task)
        self.client.append(client)
        self.fragment.append(fragment)
        self.start.append(t)
        self.end.append(nan)
        self.cost.append(cost)
        self.bytes_down.append(bytes_down)
        self.bytes_up.append(0)
        self.staleness.append(0)
        self.fate.append(Fate.RUNNING)
        self._starts += t

    def _add_commit(self, event: Mapping[str, Any], t: float) -> None:
        bytes_up = whole_number(event["bytes_up"])
        staleness = whole_number(event["staleness"])
        place = self._in_flight.pop(event["task"])
        self._end_task(place, t, Fate.DONE)
        self.bytes_up[place] = bytes_up
        self.staleness[place] = staleness
        self.commits.append(place)
        self.with_traffic.append(place)

    def _end_task(self, place: int, t: float, fate: Fate) -> None:
        self.end[place] = t
        self.fate[place] = fate
        self._busy += t - self.start[place]
        self._starts -= self.start[place]


def read_timeline(directory: Path, *, partial: bool = False) -> TaskTimeline:
    """Return the tasks and rounds of a run's log.

    Args:
        directory: The run directory.
        partial: True to skip an incomplete last line.

    Raises:
        InputError: A line is not an event of a run. The error names the first such line.
    """
    timeline = TaskTimeline()
    for line, event in enumerate(read_events(directory, partial=partial), 1):
        try:
            timeline.add(event)
        except WRONG_VALUES:
            raise not_an_event_error(directory, line) from None
    return timeline


def _failure_fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a fault or a drop. Missing texts are None."""
    failure = {"kind": event["kind"], "t": float_number(event["t"]), "wall": float_number(event["wall"])}
    for name in ("error", "action", "task", "client", "worker"):
        value = event.get(name)
        failure[name] = None if value is None else str(value)
    return failure
