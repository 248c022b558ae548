"""Bandwidths that change with time, as traces from a CSV file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.reading.table_file import read_frame, row_text

COLUMNS = ["client", "end", "downlink", "uplink"]
Row = tuple[float, float, float]
DescribedRow = tuple[int, float, float | None, float | None]


@dataclass(frozen=True)
class LinkTrace:
    """The bandwidths of a client over time, in the fleet's units. They repeat after the last row.

    Attributes:
        rows: For each span of time: its end, the bandwidth to the client, and the bandwidth to the server. A span
            starts at the end of the previous one, the first at 0.
    """

    rows: tuple[Row, ...]

    def download_time(self, start: float, amount: float) -> float:
        """Return the duration of a download of `amount`, in the fleet's units, from the time `start`."""
        return self._transfer_time(1, start, amount)

    def upload_time(self, start: float, amount: float) -> float:
        """Return the duration of an upload of `amount`, in the fleet's units, from the time `start`."""
        return self._transfer_time(2, start, amount)

    @property
    def mean_downlink(self) -> float:
        """The mean bandwidth to the client."""
        return self._moved_per_period(1) / self._period

    @property
    def mean_uplink(self) -> float:
        """The mean bandwidth to the server."""
        return self._moved_per_period(2) / self._period

    @property
    def _period(self) -> float:
        return self.rows[-1][0]

    def _moved_per_period(self, direction: int) -> float:
        """Return the amount that the whole trace transfers to the client (`direction` 1) or to the server (2)."""
        begins = (0.0, *(row[0] for row in self.rows[:-1]))
        return sum(row[direction] * (row[0] - begin) for row, begin in zip(self.rows, begins, strict=True))

    def _transfer_time(self, direction: int, start: float, amount: float) -> float:
        # Each period of the trace transfers the same amount, so a division gives the number of full periods.
        periods, left = divmod(amount, self._moved_per_period(direction))
        duration = periods * self._period
        now = start % self._period
        place = next(place for place, row in enumerate(self.rows) if now < row[0])
        while True:
            end, bandwidth = self.rows[place][0], self.rows[place][direction]
            if left <= bandwidth * (end - now):
                return duration + left / bandwidth
            left -= bandwidth * (end - now)
            duration += end - now
            place += 1
            now = end
            if place == len(self.rows):
                place = 0
                now = 0.0


def read_links(path: Path, clients: int) -> dict[int, LinkTrace]:
    """Return the traces by client from a CSV file with the columns client, end, downlink and uplink.

    Args:
        path: The file, with a row for each span of time of some clients.
        clients: The number of clients.

    Raises:
        InputError: The file is malformed.
    """
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    field = f"links: {path}"
    frame = read_frame("links", path)
    if list(frame.columns) != COLUMNS:
        raise InputError(f"{field} columns", got=list(frame.columns), expected=", ".join(COLUMNS))
    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    return _make_traces(field, numbers, clients, lambda row: (f"line {frame.index[row]}", row_text(frame, row)))


def describe_links(links: Mapping[int, LinkTrace]) -> list[DescribedRow]:
    """Return the rows of all traces for config.json, with None for an infinite bandwidth."""
    described: list[DescribedRow] = []
    for client, trace in links.items():
        for end, *bandwidths in trace.rows:
            down, up = (value if np.isfinite(value) else None for value in bandwidths)
            described.append((client, end, down, up))
    return described


def restore_links(field: str, described: Sequence[DescribedRow], clients: int) -> dict[int, LinkTrace]:
    """Return the traces by client from rows of `describe_links`. Raise InputError if a row is damaged.

    Args:
        field: The name of the rows in errors.
        described: The rows.
        clients: The number of clients.
    """
    # None in the file stands for an infinite bandwidth. The conversion to float makes it NaN.
    numbers = np.array(described, np.float64).reshape(-1, 4)
    numbers[:, 2:][np.isnan(numbers[:, 2:])] = np.inf
    return _make_traces(field, numbers, clients, lambda row: (f"row {row + 1}", described[row]))


def _make_traces(
    field: str, numbers: npt.NDArray[np.float64], clients: int, show: Callable[[int], tuple[str, object]]
) -> dict[int, LinkTrace]:
    """Return the traces by client. Raise InputError for the first row with a wrong value.

    Args:
        field: The name of the rows in errors.
        numbers: The rows [n, 4]: client, end, downlink, uplink. NaN stands for a value that is not a number.
        clients: The number of clients.
        show: A function from a row's index to its name and its values before conversion to numbers, for errors.
    """
    rows: dict[int, list[Row]] = {}
    # For each client, the end of the last span that was read so far.
    ends = dict.fromkeys(range(clients), 0.0)
    for row, (client, end, down, up) in enumerate(numbers.tolist()):
        if client not in ends or not ends[client] < end < np.inf or not (down > 0 and up > 0):
            expected = f"a client from 0 to {clients - 1}, ends that ascend from 0, and bandwidths above 0"
            place, values = show(row)
            raise InputError(f"{field} {place}", got=values, expected=expected)
        ends[int(client)] = end
        rows.setdefault(int(client), []).append((end, down, up))
    return {client: LinkTrace(tuple(spans)) for client, spans in rows.items()}
