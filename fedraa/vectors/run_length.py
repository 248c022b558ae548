"""Run-length encoded arrays. They need little memory if many consecutive numbers are equal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunLengthArray:
    """An array [size] in which all elements from `starts[i]` to the next start are `values[i]`."""

    starts: Starts
    values: npt.NDArray[Any]
    size: int

    @property
    def lengths(self) -> Starts:
        """Return the number of elements from each start to the next start, or from the last start to the end."""
        return np.diff(self.starts, append=self.size)

    def __getitem__(self, piece: slice) -> npt.NDArray[Any]:
        """Return the numbers of a slice. If all are equal, the result is a read-only view of one number."""
        first = int(np.searchsorted(self.starts, piece.start, "right")) - 1
        last = int(np.searchsorted(self.starts, piece.stop, "left"))
        values = self.values[first:last]
        length = piece.stop - piece.start
        if length == 0:
            return self.values[:0]
        if (values == values[0]).all():
            return np.broadcast_to(values[0], length)
        inner = self.starts[first + 1 : last]
        return np.repeat(values, np.diff(inner, prepend=piece.start, append=piece.stop))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all numbers [size]."""
        return np.asarray(self[slice(0, self.size)], dtype)


Sums = npt.NDArray[Any] | RunLengthArray
"""Numbers of all coordinates, which can be sliced."""

Run = tuple[Index, Index, float]
"""An amount to add to the coordinates from `starts` [r] to `stops` [r]."""


def sum_runs(runs: Sequence[Run], whole: Any, kind: type[np.generic], size: int) -> RunLengthArray:
    """Add amounts to ranges of coordinates. Return the sum at each coordinate.

    Args:
        runs: The starts of some ranges, the ends of these ranges, and the amount to add to each range. The starts and
            the ends must ascend. All sums must be exact.
        whole: An amount to add to all coordinates.
        kind: Type of the result.
        size: Number of coordinates.
    """
    ends = [np.zeros(1, np.int64)]
    steps = [np.zeros(1)]
    for starts, stops, amount in runs:
        ends += [starts, stops]
        steps += [np.full(len(starts), amount), np.full(len(stops), -amount)]
    places = np.concatenate(ends)
    order = np.argsort(places, kind="stable")
    sums = np.cumsum(np.concatenate(steps)[order])
    places = places[order]
    # Several ranges may start or end at one coordinate. Only the last sum there is complete.
    last = np.flatnonzero(np.diff(places, append=size))
    return RunLengthArray(places[last], sums[last].astype(kind) + whole, size)


def distinct_values(sums: Sums) -> npt.NDArray[Any]:
    """Return the stored values of a RunLengthArray, or all numbers of a plain array. Values may repeat."""
    if isinstance(sums, RunLengthArray):
        return sums.values
    return sums


def summarise_coverage(coverage: Sums, clients: int) -> dict[str, int]:
    """Return the minimum and maximum coverage and the number of uncovered coordinates, for the log.

    Args:
        coverage: The number of clients that trained each coordinate [d].
        clients: The number of all clients.
    """
    values = distinct_values(coverage)
    covered = values > 0
    uncovered = np.count_nonzero(~covered)
    if isinstance(coverage, RunLengthArray):
        uncovered = coverage.lengths[~covered].sum()
    return {
        "coverage_min": int(values.min()),
        "coverage_max": int(values.max()),
        "uncovered": int(uncovered),
        "coverage_min_trained": int(values.min(initial=clients, where=covered)) if covered.any() else 0,
    }
