"""What the events of a run come to, as they come: tasks, bytes, staleness, rounds, faults."""

from array import array
from collections import deque
from collections.abc import Mapping
from math import nan
from typing import Any

from fedraa.board.sampling import number

LIMIT = 2**63
FLIGHT, DONE, DROPPED = 0, 1, 2  # what became of a task
TROUBLES = 200  # newest faults and drops that are kept in full


class Tally:
    """Columns with an entry per task, in the order of dispatch: `start`, `end` (NaN while it is in flight), `client`,
    `fragment`, `staleness` (of a commit), `fate`; per commit `commit_t` and `sent`, the bytes of all commits so far,
    down and up; per round those of its event. Some 60 bytes a task.
    """

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.client, self.fragment, self.staleness = array("q"), array("q"), array("q")
        self.fate = array("b")
        self.commit_t, self.sent = array("d"), array("d")
        self.round, self.covered_min, self.covered_max = array("q"), array("q"), array("q")
        self.uncovered = array("q")
        self.troubles: deque[dict[str, Any]] = deque(maxlen=TROUBLES)
        self.events = self.faults = self.drops = self.step = self.stale = 0
        self.down = self.up = 0  # bytes
        self.t = self.wall = 0.0
        self._busy = self._starts = 0.0  # time of all tasks that are over; sum of when those in flight began
        self._flight: dict[int, tuple[int, int]] = {}  # by task: its place in the columns, its bytes down

    def add(self, event: Mapping[str, Any]) -> None:
        """KeyError, TypeError or OverflowError for what is no event of a run; then it changes no column."""
        kind, t = event["kind"], float(event["t"])
        if kind == "dispatch":
            self._dispatched(event, t)
        elif kind == "commit":
            self._committed(event, t)
        elif kind == "round":
            self._closed(event)
        elif kind in ("fault", "drop"):
            self._failed(event, kind, t)
        self.step = natural(event.get("step", self.step))
        self.t, self.wall = max(self.t, t), float(event["wall"])
        self.events += 1

    @property
    def commits(self) -> int:
        return len(self.commit_t)

    @property
    def in_flight(self) -> int:
        return len(self._flight)

    def idle_share(self, clients: int) -> float | None:
        """Share of all clients' time so far in which they had no task; None before any has passed."""
        if not self.t:
            return None
        busy = self._busy + len(self._flight) * self.t - self._starts
        return 1 - busy / (clients * self.t)

    def _dispatched(self, event: Mapping[str, Any], t: float) -> None:
        client, fragment, down = natural(event["client"]), natural(event["fragment"]), natural(event["bytes_down"])
        self._flight[event["task"]] = len(self.start), down
        self.start.append(t)
        self.end.append(nan)
        self.client.append(client)
        self.fragment.append(fragment)
        self.staleness.append(0)
        self.fate.append(FLIGHT)
        self.down += down
        self._starts += t

    def _committed(self, event: Mapping[str, Any], t: float) -> None:
        up, stale = natural(event["bytes_up"]), natural(event["staleness"])
        place, down = self._over(event["task"], t, DONE)
        self.staleness[place] = stale
        self.stale += stale
        self.up += up
        self.commit_t.append(t)
        self.sent.append((self.sent[-1] if self.sent else 0.0) + down + up)

    def _over(self, task: int, t: float, fate: int) -> tuple[int, int]:
        place, down = self._flight.pop(task)
        self.end[place], self.fate[place] = t, fate
        self._busy += t - self.start[place]
        self._starts -= self.start[place]
        return place, down

    def _closed(self, event: Mapping[str, Any]) -> None:
        names = ("round", "coverage_min", "coverage_max", "uncovered")
        which, least, most, uncovered = (natural(event[name]) for name in names)
        self.round.append(which)
        self.covered_min.append(least)
        self.covered_max.append(most)
        self.uncovered.append(uncovered)

    def _failed(self, event: Mapping[str, Any], kind: str, t: float) -> None:
        if kind == "drop":
            self._over(event["task"], t, DROPPED)
            self.drops += 1
        else:
            self.faults += 1
        told = {name: event.get(name) for name in ("what", "action", "task", "client", "worker")}
        words = {name: None if value is None else str(value) for name, value in told.items()}
        self.troubles.append({"kind": kind, "t": number(t), "wall": number(float(event["wall"])), **words})


def natural(value: Any) -> int:
    """A whole number from 0 that a column can hold; TypeError for anything else."""
    if isinstance(value, int) and 0 <= value < LIMIT:
        return value
    raise TypeError(f"got {value!r}; it is a whole number from 0")
