"""The end times of tasks: their cost, its variation, and the availability of devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.errors import InputError
from fedraa.reading import refuse_no_file
from fedraa.rng import generator

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Availability:
    """Times when devices are available: ascending spans [start, end) of the run's clock per client.

    With a `period`, such as a day, the spans repeat. A client without spans is always available. A device that becomes
    unavailable continues its task when it is available again: work is late, never lost. Without a period a device is
    never available after its last span.
    """

    spans: dict[int, Spans]
    period: float | None = None

    def finish(self, client: int, start: float, work: float) -> float:
        """Return the time by which the device was available for `work` since `start`, or infinity."""
        spans = self.spans.get(client)
        if spans is None:
            return start + work
        cycle, base = 0.0, 0.0
        if self.period is not None:
            cycle = start // self.period
            base = cycle * self.period
            whole = sum(end - begin for begin, end in spans)
            first = sum(max(0.0, end - max(begin, start - base)) for begin, end in spans)
            if work > first:
                # The work continues in later periods; those that it fills are skipped.
                skipped = max(0.0, float(np.ceil((work - first) / whole)) - 1)
                work -= first + skipped * whole
                base = (cycle + 1 + skipped) * self.period
                start = base
        for begin, end in spans:
            begin, end = max(base + begin, start), base + end
            if end - begin >= work:
                return begin + work
            work -= max(0.0, end - begin)
        return float("inf")

    def described(self) -> dict[str, Any]:
        return {"spans": {str(client): spans for client, spans in self.spans.items()}, "period": self.period}

    @classmethod
    def from_described(cls, described: dict[str, Any]) -> "Availability":
        spans = {int(client): [(a, b) for a, b in spans] for client, spans in described["spans"].items()}
        return cls(spans, described["period"])


@dataclass(frozen=True)
class Daily:
    """Every device is available for a `share` of each `period`, from a time of day that is drawn from the seed."""

    share: float
    period: float
    seed: int

    def finish(self, client: int, start: float, work: float) -> float:
        """Return the time by which the device was available for `work` since `start`."""
        phase = float(generator(self.seed, "availability", client).uniform(0, self.period))
        length = self.share * self.period
        # Time since the device last became available.
        since = (start - phase) % self.period
        begin = start if since < length else start + self.period - since
        left = length - since if since < length else length
        if work <= left:
            return begin + work
        whole, rest = divmod(work - left, length)
        if rest == 0:
            whole, rest = whole - 1, length
        return begin + left + (self.period - length) + whole * self.period + rest

    def described(self) -> dict[str, Any]:
        return {"share": self.share, "period": self.period, "seed": self.seed}


def availability_from(described: dict[str, Any]) -> Availability | Daily:
    """Return the availability that `described` returned as a dict."""
    return Daily(**described) if "share" in described else Availability.from_described(described)


@dataclass(frozen=True)
class Timing:
    """The modelled end of tasks, a pure function of the seed."""

    seed: int
    jitter: float
    availability: Availability | Daily | None = None

    def due(self, client: int, turn: int, now: float, cost: float) -> float:
        """Return the end time of the client's `turn`-th task, which is sent at `now` and costs `cost` on average.

        The duration is uniform in cost * [1 - jitter, 1 + jitter].
        """
        factor = 1.0
        if self.jitter:
            factor = float(generator(self.seed, "jitter", client, turn).uniform(1 - self.jitter, 1 + self.jitter))
        work = cost * factor
        return now + work if self.availability is None else self.availability.finish(client, now, work)


def read_availability(path: Path, clients: int, period: float | None, seed: int = 0) -> Availability | Daily:
    """Return the availability in a CSV file with the columns client, start, end and a row per span.

    `daily:SHARE` instead of a file is a Daily. Raises InputError if the file cannot be used.
    """
    if str(path).startswith("daily:"):
        return _daily(str(path), period, seed)
    # Importing pandas is slow, and workers do without it.
    import pandas as pd

    field = f"availability: {path}"
    try:
        refuse_no_file(path)
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(field, f"it cannot be read as CSV: {str(error).splitlines()[0]}") from error
    if list(frame.columns) != ["client", "start", "end"]:
        raise InputError(f"{field} columns", got=list(frame.columns), expected="client, start, end")
    if frame.empty:
        hint = "give a span for every device that is not always available"
        raise InputError(field, "it has no row", hint=hint)
    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    spans: dict[int, Spans] = {}
    for row, (client, start, end) in enumerate(numbers.tolist(), 1):
        last = spans[int(client)][-1][1] if client in spans else 0.0
        limit = np.inf if period is None else period
        if not (0 <= client < clients and client == int(client) and last <= start < end <= limit):
            within = "" if period is None else f" to the period {period:g}"
            expected = f"clients from 0 to {clients - 1}, with ascending spans without overlap from 0{within}"
            raise InputError(f"{field} row {row}", got=frame.iloc[row - 1].tolist(), expected=expected)
        spans.setdefault(int(client), []).append((start, end))
    return Availability(spans, period)


def _daily(text: str, period: float | None, seed: int) -> Daily:
    try:
        share = float(text.partition(":")[2])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError("availability", got=text, expected="a share over 0 and at most 1, as in daily:0.3")
    if period is None:
        hint = "also give --availability-period"
        raise InputError("availability", "it needs the length of a day", got=text, hint=hint)
    return Daily(share, period, seed)
