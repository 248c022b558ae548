"""Sets of coordinates as slices of neighbours. Slices are several times faster than index arrays.

- The full vector [d] has the values of all coordinates of the model.
- A buffer [k] has the values of k of these coordinates, such as those of a submodel.
- A chunk is a slice of the positions in a buffer. A buffer is processed chunk by chunk.
- A run is a sequence of neighbouring coordinates.
- A part has neighbouring positions of a chunk. One slice or index array of the full vector selects their coordinates.

Example: the coordinates 2, 3, 4, 8, 9 are the runs 2 to 4 and 8 to 9. Their buffer has the positions 0 to 4. The chunk
`slice(1, 5)` of the buffer has two parts: `slice(3, 5)` and `slice(8, 10)` of the full vector, which are `slice(0, 2)`
and `slice(2, 4)` of the chunk.
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

# If the average length of the runs is at least this number, slices are faster than an index array.
MIN_RUN_LENGTH = 512
# Number of coordinates that are examined at a time.
WINDOW = 1 << 16


@dataclass(frozen=True, eq=False)
class IndexRuns:
    """The coordinates `index` [k] as runs.

    Run i begins at coordinate `starts[i]` of the full vector. In a buffer [k] it has the positions from `places[i]` up
    to `places[i + 1]`, excluded.
    """

    index: Index
    starts: list[int]
    places: list[int]

    def within(self, chunk: slice) -> list[tuple[slice, slice]]:
        """Return the parts of `chunk`, each as a slice of the full vector and a slice of the chunk."""
        slices = []
        for run in range(bisect_right(self.places, chunk.start) - 1, bisect_left(self.places, chunk.stop)):
            first, last = max(self.places[run], chunk.start), min(self.places[run + 1], chunk.stop)
            start = self.starts[run] + first - self.places[run]
            slices.append((slice(start, start + last - first), slice(first - chunk.start, last - chunk.start)))
        return slices

    def iterate_views(self, target: npt.NDArray[Number], chunk: slice) -> Iterator[tuple[npt.NDArray[Number], slice]]:
        """Yield the parts of `chunk`, each as a view of the full vector `target` and a slice of the chunk.

        Runs of equal length at equal distances, such as the rows of a matrix, are one part. Its view has a row for each
        of these runs.
        """
        run = bisect_right(self.places, chunk.start) - 1
        last = bisect_left(self.places, chunk.stop)
        # The number of the first run that does not end inside the chunk.
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
        """Return the distance between the start of each run and that of the next run.

        It is 0 for the last run, and if the next run has another length or overlaps this run.
        """
        steps, lengths = np.diff(self.starts), np.diff(self.places)
        alike = (lengths[1:] == lengths[:-1]) & (steps >= lengths[1:])
        return [*np.where(alike, steps, 0).tolist(), 0]

    @cached_property
    def _distance_changes(self) -> list[int]:
        """Return the indices of runs with another distance than the run before, then the number of all runs."""
        return [*(np.flatnonzero(np.diff(self._run_distances)) + 1).tolist(), len(self.starts)]


CoordinateSet = Index | slice | IndexRuns
"""Coordinates of a model, each at most once."""


def in_runs(index: Index) -> Index | IndexRuns:
    """Return the coordinates [k] as runs, or the indices unchanged if the runs are short."""
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
    """Return the coordinates of the full vector that a submodel has."""
    if submodel.index is None:
        return slice(None)
    if submodel not in _KNOWN:
        _KNOWN[submodel] = in_runs(submodel.index)
    return _KNOWN[submodel]


def common_places(indices: Sequence[Index | None], size: int) -> tuple[Index, ...]:
    """Find the coordinates that all fragments share. For each fragment, return their positions in its buffer.

    If there is only one fragment, it shares no coordinate, so its array of positions is empty.

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
    """Yield each part of a chunk: its values in the full vector, and its slice of the chunk.

    The caller may change the values in place. The full vector then gets the changed values.

    Args:
        target: The full vector.
        where: The coordinates of the buffer.
        chunk: A slice of the buffer.
    """
    if isinstance(where, IndexRuns):
        yield from where.iterate_views(target, chunk)
        return
    for place, part in global_slices(where, chunk):
        # If `place` is an index array, `values` is a copy of the values. If it is a slice, `values` is a view.
        values = target[place]
        yield values, part
        target[place] = values


def index_of(where: CoordinateSet) -> Index | slice:
    """Return the coordinates as NumPy indices or as a slice."""
    if isinstance(where, IndexRuns):
        return where.index
    return where


def global_slices(where: CoordinateSet, chunk: slice) -> Iterable[tuple[Index | slice, slice]]:
    """Return each part of `chunk`: its coordinates in the full vector, and its slice of the chunk."""
    if isinstance(where, IndexRuns):
        return where.within(chunk)
    part = slice(0, chunk.stop - chunk.start)
    if isinstance(where, slice):
        start = where.start or 0
        return [(slice(start + chunk.start, start + chunk.stop), part)]
    return [(where[chunk], part)]
