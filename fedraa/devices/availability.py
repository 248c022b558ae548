"""The availability of devices over time, and its effect on the end times of tasks."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.devices.device_columns import parse_float
from fedraa.errors import InputError
from fedraa.reading.table_file import read_frame, row_text
from fedraa.rng import generator

# The next steps if all devices that train have left.
LEFT_HINT = "end the run earlier, give --availability-period, or, if the method has rounds, --deadline"

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Availability:
    """The spans of time in which devices are available.

    A device that becomes unavailable continues its task when it is available again. Work is delayed, but never lost.

    Attributes:
        spans: For each client, ascending spans (start, end) on the run's clock. The device is available from `start`
            until just before `end`, which may be infinite. A client without an entry is always available.
        period: The time after which the spans repeat, such as a day. Without a period, a device is never available
            after its last span.
        periods: For some clients, a period that replaces `period`.
    """

    spans: dict[int, Spans]
    period: float | None = None
    periods: dict[int, float] = field(default_factory=dict)

    def count_leaving(self, until: float) -> int:
        """Return how many clients leave for ever before the time `until`."""
        return sum(
            spans[-1][1] < until and self.periods.get(client, self.period) is None
            for client, spans in self.spans.items()
        )

    def finish(self, client: int, start: float, work: float) -> float:
        """Return the end time of a task; infinity if the device is never available for long enough.

        Args:
            client: The client.
            start: The start time of the task.
            work: The time for which the device must be available to finish the task.
        """
        spans = self.spans.get(client)
        if spans is None:
            return start + work
        base = 0.0
        period = self.periods.get(client, self.period)
        if period is not None:
            cycle = start // period
            base = cycle * period
            # The available time of a whole period, and of the rest of the first period.
            whole = sum(end - begin for begin, end in spans)
            first = sum(max(0.0, end - max(begin, start - base)) for begin, end in spans)
            if work > first:
                # In one step, skip all later periods in which the task does not end.
                skipped = max(0.0, float(np.ceil((work - first) / whole)) - 1)
                work -= first + skipped * whole
                base = (cycle + 1 + skipped) * period
                start = base
        for begin, end in spans:
            begin, end = max(base + begin, start), base + end
            if end - begin >= work:
                return begin + work
            work -= max(0.0, end - begin)
        if period is None:
            return float("inf")
        # The task fits into this period. The rest of its work is only a rounding error.
        return base + spans[-1][1]

    def available_time(self, client: int, start: float, end: float) -> float:
        """Return for how long the device is available between two times."""
        spans = self.spans.get(client)
        if spans is None:
            return end - start
        period = self.periods.get(client, self.period)

        def available_until(time: float) -> float:
            earlier = 0.0
            if period is not None:
                cycles, time = divmod(time, period)
                earlier = cycles * sum(until - begin for begin, until in spans)
            return earlier + sum(max(0.0, min(until, time) - begin) for begin, until in spans)

        return available_until(end) - available_until(start)

    def find_start(self, client: int, now: float) -> float:
        """Return the first time from `now` on at which the device is available; infinity if there is none."""
        spans = self.spans.get(client)
        if spans is None:
            return now
        base = 0.0
        period = self.periods.get(client, self.period)
        if period is not None:
            base = now // period * period
        for begin, end in spans:
            if now < base + end:
                return max(now, base + begin)
        if period is None:
            return float("inf")
        return base + period + spans[0][0]

    def described(self) -> dict[str, Any]:
        """Return the spans and the periods for config.json, with None for an infinite end."""
        described: dict[str, Any] = {"spans": {}, "period": self.period}
        for client, spans in self.spans.items():
            described["spans"][str(client)] = [(start, end if np.isfinite(end) else None) for start, end in spans]
        if self.periods:
            described["periods"] = {str(client): period for client, period in self.periods.items()}
        return described

    @classmethod
    def from_described(cls, described: dict[str, Any]) -> "Availability":
        spans: dict[int, Spans] = {}
        for client, pairs in described["spans"].items():
            spans[int(client)] = [(start, np.inf if end is None else end) for start, end in pairs]
        periods = {int(client): period for client, period in described.get("periods", {}).items()}
        return cls(spans, described["period"], periods)


@dataclass(frozen=True)
class Daily:
    """The rule that each device is available once per period, for the same time in each period.

    Attributes:
        share: The share of each period in which a device is available.
        period: The length of a period, such as a day.
        seed: The seed of the random times. Each device becomes available at one random time in the period.
    """

    share: float
    period: float
    seed: int

    def count_leaving(self, until: float) -> int:
        """Return 0, because no client leaves for ever."""
        return 0

    def finish(self, client: int, start: float, work: float) -> float:
        """Return the end time of a task.

        Args:
            client: The client.
            start: The start time of the task.
            work: The time for which the device must be available to finish the task.
        """
        length = self.share * self.period
        since = self._since_start(client, start)
        begin, left = start, length - since
        if since >= length:
            begin, left = start + self.period - since, length
        if work <= left:
            return begin + work
        whole, last = divmod(work - left, length)
        if last == 0:
            whole, last = whole - 1, length
        return begin + left + (self.period - length) + whole * self.period + last

    def available_time(self, client: int, start: float, end: float) -> float:
        """Return for how long the device is available between two times."""
        length = self.share * self.period
        since = self._since_start(client, start)
        cycles, last = divmod(since + end - start, self.period)
        return cycles * length + min(last, length) - min(since, length)

    def find_start(self, client: int, now: float) -> float:
        """Return the first time from `now` on at which the device is available."""
        since = self._since_start(client, now)
        if since < self.share * self.period:
            return now
        return now + self.period - since

    def _since_start(self, client: int, now: float) -> float:
        """Return the time since the device last became available."""
        phase = float(generator(self.seed, "availability", client).uniform(0, self.period))
        return (now - phase) % self.period

    def described(self) -> dict[str, Any]:
        return {"share": self.share, "period": self.period, "seed": self.seed}


def availability_from(described: dict[str, Any]) -> Availability | Daily:
    """Restore an availability from the dict that its method `described` returned."""
    if "share" in described:
        return Daily(**described)
    return Availability.from_described(described)


@dataclass(frozen=True)
class Timing:
    """A model of the end times of tasks. An end time depends only on the fields and on the arguments of `due`.

    Attributes:
        seed: The seed of the run.
        jitter: Largest random deviation of a duration from the cost, as a share of the cost.
        availability: The availability of the devices; None if all are always available.
    """

    seed: int
    jitter: float
    availability: Availability | Daily | None = None

    def find_start(self, client: int, now: float) -> float:
        """Return the first time from `now` on at which the client's device is available; infinity if there is none."""
        if self.availability is None:
            return now
        return self.availability.find_start(client, now)

    def due(self, client: int, turn: int, now: float, cost: float) -> float:
        """Return the end time of a task. Its duration is drawn uniformly from cost * [1 - jitter, 1 + jitter].

        Args:
            client: The client.
            turn: The number of earlier tasks of the client.
            now: The time at which the server sends the task.
            cost: The mean duration.
        """
        work = cost * self._jitter_factor(client, turn)
        if self.availability is None:
            return now + work
        return self.availability.finish(client, now, work)

    def finished_cost(self, client: int, turn: int, start: float, now: float) -> float:
        """Return the part of a task's cost that its device has finished at the time `now`.

        Args:
            client: The client.
            turn: The number of earlier tasks of the client.
            start: The time at which the server sent the task.
            now: A later time.
        """
        work = now - start
        if self.availability is not None:
            work = self.availability.available_time(client, start, now)
        return work / self._jitter_factor(client, turn)

    def _jitter_factor(self, client: int, turn: int) -> float:
        """Return the ratio of a task's duration to its cost."""
        if not self.jitter:
            return 1.0
        return float(generator(self.seed, "jitter", client, turn).uniform(1 - self.jitter, 1 + self.jitter))


def read_availability(path: Path, clients: int, period: float | None, seed: int = 0) -> Availability | Daily:
    """Return the availability that a CSV file or the text `daily:SHARE` describes.

    Args:
        path: A CSV file with the columns client, start and end and one row per span, or the text `daily:SHARE`.
        clients: The number of clients.
        period: The time after which spans repeat, or None.
        seed: The seed of the random times with `daily:SHARE`.

    Raises:
        InputError: The file or the share is malformed.
    """
    if str(path).startswith("daily:"):
        return _parse_daily(str(path), period, seed)
    # Unlike `path.exists`, this function returns False for a text that is too long for a path.
    if ":" in str(path) and not os.path.exists(path):
        raise InputError("availability", got=str(path), expected="a CSV file, daily:SHARE or fedscale:FILE")
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    field = f"availability: {path}"
    frame = read_frame("availability", path)
    if list(frame.columns) != ["client", "start", "end"]:
        raise InputError(f"{field} columns", got=list(frame.columns), expected="client, start, end")
    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    spans: dict[int, Spans] = {}
    limit = np.inf
    expected = f"a client from 0 to {clients - 1}, and spans that ascend from 0"
    if period is not None:
        limit = period
        expected += f" to the period {period:g}"
    expected += " without overlap"
    # For each client, the end of the last span that was read so far.
    ends = dict.fromkeys(range(clients), 0.0)
    for row, (client, start, end) in enumerate(numbers.tolist()):
        if client not in ends or not ends[client] <= start < end <= limit:
            raise InputError(f"{field} line {frame.index[row]}", got=row_text(frame, row), expected=expected)
        spans.setdefault(int(client), []).append((start, end))
        ends[int(client)] = end
    return Availability(spans, period)


def _parse_daily(text: str, period: float | None, seed: int) -> Daily:
    share = parse_float(text.partition(":")[2])
    if not 0 < share <= 1:
        raise InputError("availability", got=text, expected="a share above 0 and at most 1, as in daily:0.3")
    if period is None:
        hint = "also give --availability-period"
        raise InputError("availability", "it needs the length of a day", got=text, hint=hint)
    return Daily(share, period, seed)
