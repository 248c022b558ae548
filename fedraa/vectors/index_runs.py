"""Sets of coordinates as slices, which are several times faster than index arrays.

- The full vector [d] has the values of all coordinates of the model.
- A buffer [k] has the values of k coordinates, such as those of a submodel.
- A chunk is a slice of a buffer.
- A run is a sequence of consecutive coordinates.
- A part of a chunk is a slice of it. Its coordinates are one slice or index array of the full vector.

Example: a buffer has the coordinates 2, 3, 4, 8, 9. Its runs are 2 to 4 and 8 to 9. The chunk `slice(1, 5)` of the
buffer has two parts, with the coordinates `slice(3, 5)` and `slice(8, 10)`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index

if TYPE_CHECKING:
    from fedraa.submodels.assignment import Submodel

Number = TypeVar("Number", bound=np.generic)

# Slices are faster than an index array if the average run is at least this long.
MIN_RUN_LENGTH = 512
WINDOW = 1 << 16


@dataclass(frozen=True, eq=False)
class IndexRuns:
    """The coordinates `index` [k] of a buffer as runs of consecutive coordinates.

    Attributes:
        starts: The first coordinate of each run.
        places: The position of each run in the buffer, and at the end the buffer's length.
    """

    index: Index
    starts: list[int]
    places: list[int]

    def within(self, chunk: slice) -> list[tuple[slice, slice]]:
        """Return the runs in a chunk of the buffer, each as a slice of the full vector and one of the chunk."""
        slices = []
        for run in range(bisect_right(self.places, chunk.start) - 1, bisect_left(self.places, chunk.stop)):
            first, last = max(self.places[run], chunk.start), min(self.places[run + 1], chunk.stop)
            start = self.starts[run] + first - self.places[run]
            slices.append((slice(start, start + last - first), slice(first - chunk.start, last - chunk.start)))
        return slices

    def iterate_views(self, target: npt.NDArray[Number], chunk: slice) -> Iterator[tuple[npt.NDArray[Number], slice]]:
        """Yield views of the full vector `target` for a chunk of the buffer, each with its slice of the chunk.

        A view is a run, or an array with one row per run for runs of equal length at equal distances, such as the rows
        of a matrix.
        """
        run = bisect_right(self.places, chunk.start) - 1
        last = bisect_left(self.places, chunk.stop)
        # The first run that does not end inside the chunk.
        whole = bisect_right(self.places, chunk.stop) - 1
        while run < last:
            first, stop = max(self.places[run], chunk.start), min(self.places[run + 1], chunk.stop)
            start = self.starts[run] + first - self.places[run]
            end = run + 1
            if first == self.places[run] and self._run_distances[run] > 0:
                end = max(end, min(whole, self._distance_changes[bisect_right(self._distance_changes, run)] + 1))
            if end == run + 1:
                view = target[start : start + stop - first]
            else:
                size = target.itemsize
                shape = (end - run, stop - first)
                strides = (size * self._run_distances[run], size)
                view = np.ndarray(shape, target.dtype, target.data, size * start, strides)
                stop = self.places[end]
            yield view, slice(first - chunk.start, stop - chunk.start)
            run = end

    @cached_property
    def _run_distances(self) -> list[int]:
        """Return the distance from each run's start to the next.

        It is 0 for the last run, and before a run that overlaps or has another length.
        """
        steps, lengths = np.diff(self.starts), np.diff(self.places)
        alike = (lengths[1:] == lengths[:-1]) & (steps >= lengths[1:])
        return [*np.where(alike, steps, 0).tolist(), 0]

    @cached_property
    def _distance_changes(self) -> list[int]:
        """Return the indices of runs with another distance than the run before, then the number of runs."""
        return [*(np.flatnonzero(np.diff(self._run_distances)) + 1).tolist(), len(self.starts)]


CoordinateSet = Index | slice | IndexRuns
"""Coordinates of a model, each at most once."""


def in_runs(index: Index) -> Index | IndexRuns:
    """Return the coordinates [k] as runs, or unchanged if the runs are short."""
    if not len(index):
        return index
    places = [0]
    for start in range(0, len(index) - 1, WINDOW):
        window = index[start : start + WINDOW + 1]
        ends = np.flatnonzero(np.diff(window) != 1) + (start + 1)
        if len(places) - 1 + len(ends) > len(index) // MIN_RUN_LENGTH:
            return index
        places += ends.tolist()
    return IndexRuns(index, index[places].tolist(), [*places, len(index)])


_KNOWN: WeakKeyDictionary["Submodel", CoordinateSet] = WeakKeyDictionary()


def where_of(submodel: "Submodel") -> CoordinateSet:
    """Return the submodel's coordinates in the full vector."""
    if submodel.index is None:
        return slice(None)
    if submodel not in _KNOWN:
        _KNOWN[submodel] = in_runs(submodel.index)
    return _KNOWN[submodel]


def common_places(indices: Sequence[Index | None], size: int) -> tuple[Index, ...]:
    """Return the positions in each fragment's buffer of the coordinates that all fragments share.

    They are empty for a single fragment.

    Args:
        indices: The coordinates of each fragment, in the order of its buffer. None means all coordinates.
        size: Number of coordinates of the model.
    """
    held = [slice(None) if index is None else index for index in indices]
    holders = np.zeros(size, np.int32)
    for where in held:
        holders[where] += 1
    common = holders == len(indices)
    if len(indices) < 2:
        common[:] = False
    return tuple(np.flatnonzero(common[where]) for where in held)


def iterate_parts(
    target: npt.NDArray[Number], where: CoordinateSet, chunk: slice
) -> Iterator[tuple[npt.NDArray[Number], slice]]:
    """Yield the values at a chunk's coordinates in parts, each with its slice of the chunk.

    Changes of the values in place change the full vector.

    Args:
        target: The full vector.
        where: The coordinates of the buffer.
        chunk: A slice of the buffer.
    """
    if isinstance(where, IndexRuns):
        yield from where.iterate_views(target, chunk)
        return
    for place, part in global_slices(where, chunk):
        # Only a slice gives a view of the values.
        values = target[place]
        yield values, part
        target[place] = values


def index_of(where: CoordinateSet) -> Index | slice:
    """Return the coordinates as NumPy indices or as a slice."""
    if isinstance(where, IndexRuns):
        return where.index
    return where


def global_slices(where: CoordinateSet, chunk: slice) -> Iterable[tuple[Index | slice, slice]]:
    """Return a chunk's coordinates in parts, each with its slice of the chunk."""
    if isinstance(where, IndexRuns):
        return where.within(chunk)
    part = slice(0, chunk.stop - chunk.start)
    if isinstance(where, slice):
        start = where.start or 0
        return [(slice(start + chunk.start, start + chunk.stop), part)]
    return [(where[chunk], part)]
