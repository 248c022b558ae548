"""Arrays with a number for each coordinate, in which long runs of neighbours have equal numbers, stored as runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index

Starts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunLengthArray:
    """An array [size] of numbers: `values[i]` from coordinate `starts[i]` to the next start. The first start is 0."""

    starts: Starts
    values: npt.NDArray[Any]
    size: int

    @property
    def lengths(self) -> Starts:
        """Return the length of each run, in coordinates."""
        return np.diff(self.starts, append=self.size)

    def __getitem__(self, piece: slice) -> npt.NDArray[Any]:
        """Return the numbers of a chunk. If they are all equal, the result is read-only and takes no memory."""
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
    """Return for each coordinate the sum of the amounts of all runs that contain it, plus `whole`.

    Args:
        runs: Amounts with their starts and stops, both ascending. All sums of amounts must be exact.
        whole: Amount for all coordinates.
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
    # If several runs start or end at one coordinate, only the last sum is right. An end at `size` has no coordinate.
    last = np.flatnonzero(np.diff(places, append=size))
    return RunLengthArray(places[last], sums[last].astype(kind) + whole, size)


def distinct_values(sums: Sums) -> npt.NDArray[Any]:
    """Return one number for each run, or all numbers of a plain array."""
    if isinstance(sums, RunLengthArray):
        return sums.values
    return sums


def summarise_coverage(coverage: Sums, clients: int) -> dict[str, int]:
    """Return the summary of a round's coverage for the log.

    The coverage [d] is the number of clients that trained each coordinate. `clients` is the number of all clients.
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
