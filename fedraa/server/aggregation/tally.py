"""Sums per coordinate of what is the same on many: how often each was trained, and with what weight."""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, State
from fedraa.server.change import Change

EXACT = 2.0**24  # up to which a float32 has all whole numbers


class Tally:
    """Adds numbers to coordinates [size]: once, not everywhere, what goes to all of them or to runs of neighbours.

    Runs are added up by their ends, as long as that is exact; else, as without runs, coordinate by coordinate.
    """

    def __init__(self, size: int, kind: type[np.int32] | type[np.float32]) -> None:
        self._size, self._kind = size, kind
        self._start()

    def _start(self) -> None:
        self._sums: npt.NDArray[Any] | None = None  # of coordinates [size]
        self._ends: dict[int, float] = {}  # what is more, or less, from a coordinate on
        self._whole = self._kind(0)
        self._partial, self._total = False, 0.0

    def add(self, change: Change, amount: float = 1.0) -> None:
        """Adds `amount` to the coordinates that were trained."""
        if change.whole:
            self._whole += self._kind(amount)
            return
        self._partial = True
        self._total += amount if float(amount).is_integer() else EXACT
        if self._total > EXACT:
            self._spread()
        for place in change.places():
            if isinstance(place, slice) and self._total <= EXACT:
                self._ends[place.start] = self._ends.get(place.start, 0.0) + amount
                self._ends[place.stop] = self._ends.get(place.stop, 0.0) - amount
            else:
                self._put(place, amount)

    def finish(self) -> npt.NDArray[Any]:
        """The sums [size], which may be read-only; all begins anew."""
        if not self._partial:
            sums: npt.NDArray[Any] = np.broadcast_to(self._whole, self._size)
        else:
            self._spread()
            sums = self._each()
            np.add(sums, self._whole, out=sums)
        self._start()
        return sums

    def state(self) -> State:
        self._spread()
        return {"count": self._each() if self._partial else 0, "whole": self._whole}

    def restore(self, state: State) -> None:
        self._start()
        self._whole = self._kind(state["whole"])
        if np.any(state["count"]):
            self._partial = True
            self._each()[:] = state["count"]
            self._total = EXACT  # nobody knows

    def _put(self, place: Index | slice, amount: float) -> None:
        sums, more = self._each(), self._kind(amount)
        sums[place] = sums[place] + more

    def _each(self) -> npt.NDArray[Any]:
        if self._sums is None:
            self._sums = np.zeros(self._size, self._kind)  # the system gives memory as it is written to
        return self._sums

    def _spread(self) -> None:
        """What came to runs goes to their coordinates."""
        places = sorted(self._ends)
        amounts = accumulate(self._ends[place] for place in places)
        for (first, last), amount in zip(pairwise(places), amounts, strict=False):
            if amount:
                self._put(slice(first, last), amount)
        self._ends.clear()
