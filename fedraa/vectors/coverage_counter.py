"""A counter for each coordinate (parameter) of the model, such as the number of clients that trained it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, State
from fedraa.vectors.chunked import map_chunks
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.reusable_buffer import ReusableBuffer
from fedraa.vectors.run_length import Run, RunLengthArray, Sums, sum_runs

# Float32 is exact for all integers up to this number.
LARGEST_EXACT = 2.0**24


class CoverageCounter:
    """A counter for each coordinate [size]. Most additions do not visit every coordinate.

    An addition to all coordinates is stored as one number. An addition to ranges of consecutive coordinates is stored
    as their starts and ends. If sums may be inexact in float32, the addition visits each coordinate.
    """

    def __init__(self, size: int, kind: type[np.int32] | type[np.float32]) -> None:
        self._size = size
        self._kind = kind
        self._room = ReusableBuffer(size, kind)
        self._reset_sums()

    def _reset_sums(self) -> None:
        self._sums: npt.NDArray[Any] | None = None
        self._runs: list[Run] = []
        self._whole = self._kind(0)
        self._total = 0.0

    def add(self, change: DeltaView, amount: float = 1.0) -> None:
        """Add `amount` to the counter of each coordinate that a client trained."""
        if change.whole:
            self._whole += self._kind(amount)
            return
        self._total += amount if float(amount).is_integer() else LARGEST_EXACT
        if self._total <= LARGEST_EXACT:
            runs = change.ranges()
            if runs is not None:
                self._runs.append((*runs, amount))
                return
        self._spread_runs()
        for place in change.places():
            self._add_at(place, amount)

    def finish(self) -> Sums:
        """Return the sums [size] and reset the counter. The sums may be read-only."""
        sums = self._finish_sums()
        self._reset_sums()
        return sums

    def state(self) -> State:
        """Return the array of sums, and the number that was added to all coordinates."""
        if not self._runs and self._sums is None:
            return {"count": 0, "whole": self._whole}
        whole = self._whole
        self._whole = self._kind(0)
        count = np.asarray(self._finish_sums())
        self._whole = whole
        return {"count": count, "whole": whole}

    def restore(self, state: State) -> None:
        self._reset_sums()
        self._whole = self._kind(state["whole"])
        if np.any(state["count"]):
            self._coordinate_sums()[:] = state["count"]
            # The state does not contain `_total`. With LARGEST_EXACT, later calls of `add` visit each coordinate.
            self._total = LARGEST_EXACT

    def _finish_sums(self) -> Sums:
        if self._sums is None:
            return sum_runs(self._runs, self._whole, self._kind, self._size)
        self._spread_runs()
        sums = self._sums
        if self._whole:
            map_chunks(self._size, lambda piece: np.add(sums[piece], self._whole, out=sums[piece]))
        return sums

    def _add_at(self, place: Index | slice, amount: float) -> None:
        sums = self._coordinate_sums()
        sums[place] = sums[place] + self._kind(amount)

    def _coordinate_sums(self) -> npt.NDArray[Any]:
        if self._sums is None:
            self._sums = self._room.filled(0)
        return self._sums

    def _spread_runs(self) -> None:
        if not self._runs:
            return
        levels: RunLengthArray = sum_runs(self._runs, self._kind(0), self._kind, self._size)
        sums = self._coordinate_sums()
        self._runs = []
        map_chunks(self._size, lambda piece: np.add(sums[piece], levels[piece], out=sums[piece]))
