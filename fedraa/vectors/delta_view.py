"""What a client has changed, made piece by piece: who takes it in does so while a piece is in the cache."""

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.vectors.chunked import PIECE, each, less, pieces, squares, total
from fedraa.vectors.index_runs import RUN, Runs, Where, in_runs, index_of, places_of

Mask = npt.NDArray[np.bool_]
Take = Callable[[Index | slice, Vector], None]


class Change:
    """`new` less what was `sent` (None: 0), buffers [k] of a part of the model on the coordinates `where`.

    Of these only those count where the `mask` [k] is true (None: all). A slice of coordinates is the whole model's.
    With `norm` the first pass takes it along. With `gather` those who `join` are waited for, until `settle`: one pass
    does for all of them.
    """

    def __init__(
        self,
        where: Where,
        new: Vector,
        sent: Vector | None = None,
        mask: Mask | None = None,
        *,
        norm: bool = False,
        gather: bool = False,
    ) -> None:
        self._where, self._new, self._sent, self._mask = where, new, sent, mask
        self._measuring = norm
        self._sums: list[float] = []
        self._joined: list[Take] | None = [] if gather else None

    @property
    def whole(self) -> bool:
        """Whether these are all coordinates of a model."""
        return self._mask is None and isinstance(self._where, slice) and self._where == slice(None)

    @cached_property
    def where(self) -> Index | slice:
        """The coordinates that were trained."""
        where = index_of(self._where)
        if self._mask is None:
            return where
        kept = np.flatnonzero(self._mask)
        return kept if isinstance(where, slice) else where[kept]

    @cached_property
    def delta(self) -> Vector:
        """The change on them, as one buffer that is nobody else's."""
        new, sent = self._new, self._sent
        if self._mask is not None:
            new, sent = new[self._mask], None if sent is None else sent[self._mask]
        return new.copy() if sent is None else new - sent

    @property
    def squared(self) -> float:
        """The square of its norm, if that is asked for."""
        if self._measuring:
            self.each()
        return total(self._sums)

    def join(self, take: Take) -> None:
        """Has all of it taken, as `each`: now, or together with what others take before anybody asks for it."""
        if self._joined is None:
            self.each(take)
        else:
            self._joined.append(take)

    def settle(self) -> None:
        """Now all who joined get it."""
        takes, self._joined = self._joined, None
        if takes:
            self.each(*takes)

    def each(self, *takes: Take) -> None:
        """Has all of it taken: whoever takes gets coordinates and the change on them, which is not to be kept.

        On several threads, if it is much: no coordinate is given twice to one.
        """
        measuring = self._measuring

        def visit(piece: slice) -> list[float]:
            delta, places = self._cut(piece)
            for place, part in places:
                for take in takes:
                    take(place, delta[part])
            return squares(delta) if measuring else []

        sums = list(chain.from_iterable(each(self._pieces, visit)))
        if measuring:
            self._sums, self._measuring = sums, False

    def places(self) -> Iterator[Index | slice]:
        """The coordinates, in few parts."""
        if self._mask is None:
            yield from (place for place, _ in places_of(self._where, slice(0, len(self._new))))
        else:
            for piece in self._pieces:
                yield from (place for place, _ in self._places(piece)[0])

    def runs(self) -> tuple[Index, Index] | None:
        """The coordinates as runs: where they start, and where they end; None if they are too many to be worth it."""
        if self._mask is None and isinstance(self._where, Runs):
            starts, places = np.array(self._where.starts), np.array(self._where.places)
            return starts, starts + np.diff(places)
        found = list(self.places())
        slices = [place for place in found if isinstance(place, slice)]
        if len(slices) < len(found):
            return None
        return np.array([place.start for place in slices], np.int64), np.array([p.stop for p in slices], np.int64)

    def _cut(self, piece: slice) -> tuple[Vector, list[tuple[Index | slice, slice]]]:
        """The change on a piece, and where it goes."""
        delta = less(self._new[piece], None if self._sent is None else self._sent[piece])
        places, kept = self._places(piece)
        return (delta if kept is None else delta[kept]), places

    def _places(self, piece: slice) -> tuple[list[tuple[Index | slice, slice]], Index | None]:
        """Where the trained coordinates of a piece are, and which of the piece they are (None: all)."""
        if self._mask is None or self._mask[piece].all():
            return list(places_of(self._where, piece)), None
        kept = np.flatnonzero(self._mask[piece])
        where = index_of(self._where)
        index = kept + piece.start if isinstance(where, slice) else where[piece][kept]
        mask = self._mask[piece]
        many = np.count_nonzero(mask[1:] != mask[:-1]) > 2 * len(kept) // RUN  # ends of runs
        return list(places_of(index if many else in_runs(index), slice(0, len(kept)))), kept

    @cached_property
    def _pieces(self) -> list[slice]:
        """Pieces of the buffers with `PIECE` trained coordinates each, but for the last: so the norm's bits are those
        of one pass over what was trained."""
        if self._mask is None:
            return pieces(len(self._new))
        found, start, held = [], 0, 0
        for piece in pieces(len(self._mask)):
            mask = self._mask[piece]
            count = int(np.count_nonzero(mask))
            held += count
            if held >= PIECE:
                last = PIECE - (held - count)  # of those of this piece
                end = piece.start + (last if count == len(mask) else int(np.flatnonzero(mask)[last - 1]) + 1)
                found.append(slice(start, end))
                start, held = end, held - PIECE
        return [*found, slice(start, len(self._mask))] if held else found
