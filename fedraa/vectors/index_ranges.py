"""Sets of coordinates as ranges. Slices are several times faster than index arrays.

- The full vector [d] has the values of all coordinates (parameters) of the model.
- A buffer [k] has the values of k coordinates, such as those of a submodel.
- A range is a sequence of consecutive coordinates.
- A chunk is a slice of a buffer. It is small enough for the CPU cache.
- A part of a chunk is a slice of the chunk. Its coordinates are one slice, or one index array, of the full vector.

Example: a buffer has the coordinates 2, 3, 4, 8, 9. Its ranges are 2 to 4 and 8 to 9. The chunk `slice(1, 5)` of the
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

# Slices are faster than an index array if ranges have at least this mean length.
MIN_RANGE_LENGTH = 512
WINDOW = 1 << 16


@dataclass(frozen=True, eq=False)
class IndexRanges:
    """The coordinates of a buffer [k] as ranges of consecutive coordinates.

    Attributes:
        index: All coordinates [k].
        starts: The first coordinate of each range.
        places: The position in the buffer at which each range starts. The last entry is the length of the buffer.
    """

    index: Index
    starts: list[int]
    places: list[int]

    def within(self, chunk: slice) -> list[tuple[slice, slice]]:
        """Return the ranges in a chunk of the buffer, each as a slice of the full vector and a slice of the chunk."""
        slices = []
        for number in range(bisect_right(self.places, chunk.start) - 1, bisect_left(self.places, chunk.stop)):
            first, last = max(self.places[number], chunk.start), min(self.places[number + 1], chunk.stop)
            start = self.starts[number] + first - self.places[number]
            slices.append((slice(start, start + last - first), slice(first - chunk.start, last - chunk.start)))
        return slices

    def iterate_views(self, target: npt.NDArray[Number], chunk: slice) -> Iterator[tuple[npt.NDArray[Number], slice]]:
        """Yield views of the full vector `target` for a chunk of the buffer, each with its slice of the chunk.

        A view contains one range. Several ranges of equal length at equal distances, such as parts of the rows of a
        matrix, become one view with two dimensions.
        """
        number = bisect_right(self.places, chunk.start) - 1
        last = bisect_left(self.places, chunk.stop)
        # The index of the first range that does not end inside the chunk.
        incomplete = bisect_right(self.places, chunk.stop) - 1
        while number < last:
            first, stop = max(self.places[number], chunk.start), min(self.places[number + 1], chunk.stop)
            start = self.starts[number] + first - self.places[number]
            end = number + 1
            if first == self.places[number] and self._range_distances[number] > 0:
                end = max(
                    end, min(incomplete, self._distance_changes[bisect_right(self._distance_changes, number)] + 1)
                )
            if end == number + 1:
                view = target[start : start + stop - first]
            else:
                size = target.itemsize
                shape = (end - number, stop - first)
                strides = (size * self._range_distances[number], size)
                view = np.ndarray(shape, target.dtype, target.data, size * start, strides)
                stop = self.places[end]
            yield view, slice(first - chunk.start, stop - chunk.start)
            number = end

    @cached_property
    def _range_distances(self) -> list[int]:
        """Return, for each range, the distance from its start to the start of the next range.

        The distance is 0 for the last range. It is also 0 if the next range has another length or overlaps.
        """
        steps, lengths = np.diff(self.starts), np.diff(self.places)
        alike = (lengths[1:] == lengths[:-1]) & (steps >= lengths[1:])
        return [*np.where(alike, steps, 0).tolist(), 0]

    @cached_property
    def _distance_changes(self) -> list[int]:
        """Return the index of each range whose `_range_distances` entry differs from the one before.

        The last entry of the result is the number of ranges.
        """
        return [*(np.flatnonzero(np.diff(self._range_distances)) + 1).tolist(), len(self.starts)]


CoordinateSet = Index | slice | IndexRanges
"""Different coordinates of a model."""


def as_ranges(index: Index) -> Index | IndexRanges:
    """Return the coordinates [k] as ranges. If the ranges would be short, return `index`."""
    if not len(index):
        return index
    places = [0]
    for start in range(0, len(index) - 1, WINDOW):
        window = index[start : start + WINDOW + 1]
        ends = np.flatnonzero(np.diff(window) != 1) + (start + 1)
        if len(places) - 1 + len(ends) > len(index) // MIN_RANGE_LENGTH:
            return index
        places += ends.tolist()
    return IndexRanges(index, index[places].tolist(), [*places, len(index)])


_KNOWN: WeakKeyDictionary["Submodel", CoordinateSet] = WeakKeyDictionary()


def where_of(submodel: "Submodel") -> CoordinateSet:
    """Return the submodel's coordinates in the full vector."""
    if submodel.index is None:
        return slice(None)
    if submodel not in _KNOWN:
        _KNOWN[submodel] = as_ranges(submodel.index)
    return _KNOWN[submodel]


def common_places(
    indices: Sequence[Index | None], size: int, omitted: npt.NDArray[np.bool_] | None = None
) -> tuple[Index, ...]:
    """Find the coordinates that all fragments contain. Return their positions in the buffer of each fragment.

    With a single fragment, the result has no positions.

    Args:
        indices: The coordinates of each fragment, in the order of its buffer. None means all coordinates.
        size: Number of coordinates of the model.
        omitted: Mask [d] of coordinates that do not count; None for none.
    """
    held = [slice(None) if index is None else index for index in indices]
    holders = np.zeros(size, np.int32)
    for where in held:
        holders[where] += 1
    common = holders == len(indices)
    if omitted is not None:
        common &= ~omitted
    if len(indices) < 2:
        common[:] = False
    return tuple(np.flatnonzero(common[where]) for where in held)


def iterate_parts(
    target: npt.NDArray[Number], where: CoordinateSet, chunk: slice
) -> Iterator[tuple[npt.NDArray[Number], slice]]:
    """Yield each part of a chunk: its values in the full vector, and its place in the chunk as a slice.

    The caller may change the values in place. The change also applies to the full vector.

    Args:
        target: The full vector.
        where: The coordinates of the buffer.
        chunk: A slice of the buffer.
    """
    if isinstance(where, IndexRanges):
        yield from where.iterate_views(target, chunk)
        return
    for place, part in global_slices(where, chunk):
        # An index array gives a copy, so the values must be written back.
        values = target[place]
        yield values, part
        target[place] = values


def index_of(where: CoordinateSet) -> Index | slice:
    """Return the coordinates in a form that can index a NumPy array."""
    if isinstance(where, IndexRanges):
        return where.index
    return where


def global_slices(where: CoordinateSet, chunk: slice) -> Iterable[tuple[Index | slice, slice]]:
    """Return each part of a chunk: its coordinates in the full vector, and its place in the chunk as a slice."""
    if isinstance(where, IndexRanges):
        return where.within(chunk)
    part = slice(0, chunk.stop - chunk.start)
    if isinstance(where, slice):
        start = where.start or 0
        return [(slice(start + chunk.start, start + chunk.stop), part)]
    return [(where[chunk], part)]
