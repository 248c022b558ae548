"""When a task is due: its cost, how it varies, and when the device is there at all."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.reading import refuse_no_file
from fedraa.rng import generator

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class Availability:
    """When devices are there: ascending spans [start, end) of the run's clock per client.

    With a `period` the spans repeat (a day). A client that is not listed is always there. A device that goes away
    goes on with its task when it is back: work is late, never lost. Without a period the last span ends for good.
    """

    spans: dict[int, Spans]
    period: float | None = None

    def finish(self, client: int, start: float, work: float) -> float:
        """The time by which the device has been there for `work` since `start`; infinite if it never has."""
        spans = self.spans.get(client)
        if spans is None:
            return start + work
        cycle, base = 0.0, 0.0
        if self.period is not None:
            cycle = start // self.period
            base = cycle * self.period
            whole = sum(end - begin for begin, end in spans)
            first = sum(max(0.0, end - max(begin, start - base)) for begin, end in spans)
            if work > first:  # over into later periods: those that are used up entirely need no walk
                skipped = max(0.0, np.ceil((work - first) / whole) - 1)
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
class Timing:
    """The modelled end of tasks, a pure function of the seed."""

    seed: int
    jitter: float
    availability: Availability | None = None

    def due(self, client: int, turn: int, now: float, cost: float) -> float:
        """When the client's `turn`-th task is done that is given out at `now` and costs `cost` on average.

        The duration is uniform in cost * [1 - jitter, 1 + jitter].
        """
        factor = 1.0
        if self.jitter:
            factor = float(generator(self.seed, "jitter", client, turn).uniform(1 - self.jitter, 1 + self.jitter))
        work = cost * factor
        return now + work if self.availability is None else self.availability.finish(client, now, work)


def read_availability(path: Path, clients: int, period: float | None) -> Availability:
    """From a CSV file with the columns client, start, end: a row per span in which a device is there."""
    import pandas as pd  # slow to import, and workers do without

    try:
        refuse_no_file(path)
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"availability: {path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
    if list(frame.columns) != ["client", "start", "end"]:
        raise ValueError(f"availability: {path} has the columns {list(frame.columns)}; it needs client, start, end")
    if frame.empty:
        raise ValueError(f"availability: {path} has no row; give a span for every device that is not always there")
    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    spans: dict[int, Spans] = {}
    for row, (client, start, end) in enumerate(numbers.tolist(), 1):
        last = spans[int(client)][-1][1] if client in spans else 0.0
        limit = np.inf if period is None else period
        if not (0 <= client < clients and client == int(client) and last <= start < end <= limit):
            within = "" if period is None else f" to the period {period:g}"
            raise ValueError(
                f"availability: {path} row {row} is {frame.iloc[row - 1].tolist()}; clients go from 0 to "
                f"{clients - 1}, and the spans of each ascend without overlap from 0{within}"
            )
        spans.setdefault(int(client), []).append((start, end))
    return Availability(spans, period)
