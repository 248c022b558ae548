"""Coordinates of a model that are next to each other: slices do for them, and are several times faster than indices."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from fedraa.messages import Index

if TYPE_CHECKING:
    from fedraa.submodels.assignment import Submodel

RUN = 512  # coordinates next to each other, on the average, that are worth a slice of their own
LOOKED_AT = 1 << 16  # coordinates at a time


@dataclass(frozen=True, eq=False)
class Runs:
    """The coordinates `index` [k] as runs of neighbours.

    Run i begins with coordinate `starts[i]`, and is at places `places[i]` to `places[i + 1]` of a buffer [k].
    """

    index: Index
    starts: list[int]
    places: list[int]

    def within(self, piece: slice) -> list[tuple[slice, slice]]:
        """As `places_of`."""
        found = []
        for run in range(bisect_right(self.places, piece.start) - 1, bisect_left(self.places, piece.stop)):
            first, last = max(self.places[run], piece.start), min(self.places[run + 1], piece.stop)
            start = self.starts[run] + first - self.places[run]
            found.append((slice(start, start + last - first), slice(first - piece.start, last - piece.start)))
        return found


Where = Index | slice | Runs
"""Coordinates of a model, none of them twice."""


def in_runs(index: Index) -> Index | Runs:
    """Coordinates [k] as runs, unless these are short."""
    places, most = [0], len(index) // RUN
    for start in range(0, len(index) - 1, LOOKED_AT):
        some = index[start : start + LOOKED_AT + 1]
        ends = np.flatnonzero(np.diff(some) != 1) + (start + 1)
        if len(places) - 1 + len(ends) > most:
            return index
        places += ends.tolist()
    return Runs(index, index[places].tolist(), [*places, len(index)]) if len(index) else index


_KNOWN: WeakKeyDictionary["Submodel", Where] = WeakKeyDictionary()


def where_of(submodel: "Submodel") -> Where:
    """Where a submodel's buffer is in the full vector."""
    if submodel.index is None:
        return slice(None)
    if submodel not in _KNOWN:
        _KNOWN[submodel] = in_runs(submodel.index)
    return _KNOWN[submodel]


def index_of(where: Where) -> Index | slice:
    """The coordinates as NumPy takes them."""
    return where.index if isinstance(where, Runs) else where


def places_of(where: Where, piece: slice) -> Iterable[tuple[Index | slice, slice]]:
    """Where a piece of a buffer on the coordinates `where` is, in few parts, and where in the piece each of them is."""
    if isinstance(where, Runs):
        return where.within(piece)
    there = slice(0, piece.stop - piece.start)
    if isinstance(where, slice):
        start = where.start or 0
        return [(slice(start + piece.start, start + piece.stop), there)]
    return [(where[piece], there)]
