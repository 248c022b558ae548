"""A client's delta, computed chunk by chunk, so that all functions that need a chunk find it in the CPU cache."""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.messages import Index, Mask, Vector
from fedraa.vectors.chunked import (
    CHUNK_SIZE,
    ordered_sum,
    parallel_map,
    split_into_chunks,
    subtract_chunk,
    sum_squares_in_float32,
)
from fedraa.vectors.index_ranges import MIN_RANGE_LENGTH, CoordinateSet, IndexRanges, as_ranges, global_slices, index_of

Take = Callable[[Index | slice, Vector], None]


class DeltaView:
    """A client's delta: trained parameters minus received parameters, computed in chunks.

    Args:
        where: The coordinates of the client's parameters in the model. A slice means the whole model.
        new: The trained parameters [k], or the delta if `sent` is None.
        sent: The parameters [k] that the client received.
        mask: True for the coordinates [k] that the client trained. None if it trained all.
        norm: True to also compute the norm, in float32, when the delta is first read.
        gather: True if `join(take)` only stores the function `take`. `run_joined` later calls all stored functions with
            each chunk.
    """

    def __init__(
        self,
        where: CoordinateSet,
        new: Vector,
        sent: Vector | None = None,
        mask: Mask | None = None,
        *,
        norm: bool = False,
        gather: bool = False,
    ) -> None:
        self._where = where
        self._new = new
        self._sent = sent
        self._mask = mask
        self._measuring = norm
        self._sums: list[float] = []
        self._joined: list[Take] | None = [] if gather else None

    @property
    def whole(self) -> bool:
        """Return True if the delta covers all coordinates of the model."""
        return self._mask is None and isinstance(self._where, slice) and self._where == slice(None)

    @cached_property
    def where(self) -> Index | slice:
        """Return the coordinates that the client trained."""
        where = index_of(self._where)
        if self._mask is None:
            return where
        kept = np.flatnonzero(self._mask)
        if isinstance(where, slice):
            return kept
        return where[kept]

    @cached_property
    def delta(self) -> Vector:
        """Return the delta on the trained coordinates, as a new array."""
        kept = slice(None) if self._mask is None else self._mask
        if self._sent is None:
            return self._new[kept].copy()
        return self._new[kept] - self._sent[kept]

    @property
    def squared(self) -> float:
        """Return the squared norm of the delta, or 0 if `norm` is False."""
        if self._measuring:
            self.feed_consumers()
        return ordered_sum(self._sums)

    def join(self, take: Take) -> None:
        """Call a function with each chunk of the delta, or store the function for `run_joined` if `gather` is True."""
        if self._joined is None:
            self.feed_consumers(take)
        else:
            self._joined.append(take)

    def run_joined(self) -> None:
        """Call all stored functions with each chunk of the delta."""
        takes = self._joined
        self._joined = None
        if takes:
            self.feed_consumers(*takes)

    def feed_consumers(self, *takes: Take) -> None:
        """Call each function with all trained coordinates and the delta on them, chunk by chunk.

        The functions must not keep these arrays. Several threads process a large delta.
        """
        measuring = self._measuring

        def visit_chunk(piece: slice) -> list[float]:
            delta, places = self._cut_chunk(piece)
            for place, part in places:
                for take in takes:
                    # If the function fails, the error names it, such as `MyRule.add_chunk`.
                    with convert_errors("method.update", take):
                        take(place, delta[part])
            if not measuring:
                return []
            return sum_squares_in_float32(delta)

        sums = list(chain.from_iterable(parallel_map(self._trained_chunks, visit_chunk)))
        if measuring:
            self._sums = sums
            self._measuring = False

    def places(self) -> Iterator[Index | slice]:
        """Yield the trained coordinates as slices or index arrays."""
        if self._mask is None:
            yield from (place for place, _ in global_slices(self._where, slice(0, len(self._new))))
        else:
            for piece in self._trained_chunks:
                yield from (place for place, _ in self._find_places(piece)[0])

    def ranges(self) -> tuple[Index, Index] | None:
        """Return the starts and ends of ranges of trained coordinates; None if index arrays replace short ranges."""
        if self._mask is None and isinstance(self._where, IndexRanges):
            starts = np.array(self._where.starts)
            return starts, starts + np.diff(self._where.places)
        parts = list(self.places())
        slices = [part for part in parts if isinstance(part, slice)]
        if len(slices) < len(parts):
            return None
        starts = np.array([part.start for part in slices], np.int64)
        return starts, np.array([part.stop for part in slices], np.int64)

    def _cut_chunk(self, piece: slice) -> tuple[Vector, list[tuple[Index | slice, slice]]]:
        """Return the delta on the trained coordinates of a chunk, and these coordinates in the model.

        The second result is a list of pairs (coordinates in the model, slice of the returned delta).
        """
        delta = self._new[piece]
        if self._sent is not None:
            delta = subtract_chunk(delta, self._sent[piece])
        places, kept = self._find_places(piece)
        if kept is not None:
            delta = delta[kept]
        return delta, places

    def _find_places(self, piece: slice) -> tuple[list[tuple[Index | slice, slice]], Index | None]:
        """Return two results about the coordinates of a chunk that the client trained.

        The first is a list of pairs (coordinates in the model, slice of the trained values). The second has the
        positions of these coordinates in the chunk. It is None if the client trained the whole chunk.
        """
        if self._mask is None or self._mask[piece].all():
            return list(global_slices(self._where, piece)), None
        mask = self._mask[piece]
        kept = np.flatnonzero(mask)
        index = kept + piece.start
        where = index_of(self._where)
        if not isinstance(where, slice):
            index = where[index]
        coordinates: CoordinateSet = index
        # Slices are faster only if the ranges of True in the mask are long.
        if np.count_nonzero(mask[1:] != mask[:-1]) <= 2 * len(kept) // MIN_RANGE_LENGTH:
            coordinates = as_ranges(index)
        return list(global_slices(coordinates, slice(0, len(kept)))), kept

    @cached_property
    def _trained_chunks(self) -> list[slice]:
        """Return slices that contain `CHUNK_SIZE` trained coordinates each. The last slice may have fewer.

        The norm of the delta then has the same bits as the norm of an array with only the trained coordinates.
        """
        if self._mask is None:
            return split_into_chunks(len(self._new))
        slices = []
        start = 0
        held = 0
        for piece in split_into_chunks(len(self._mask)):
            mask = self._mask[piece]
            count = int(np.count_nonzero(mask))
            held += count
            if held >= CHUNK_SIZE:
                last = CHUNK_SIZE - (held - count)
                end = piece.start + last
                if count < len(mask):
                    end = piece.start + int(np.flatnonzero(mask)[last - 1]) + 1
                slices.append(slice(start, end))
                start = end
                held -= CHUNK_SIZE
        if held:
            slices.append(slice(start, len(self._mask)))
        return slices
