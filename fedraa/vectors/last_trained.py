"""The round in which each coordinate was last trained."""

import numpy as np

from fedraa.messages import State
from fedraa.vectors.chunked import map_chunks
from fedraa.vectors.run_length import RunLengthArray, Sums


class LastTrained:
    """The round in which each coordinate [d] was last trained, -1 before. One number is kept while all are equal."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._all: int | None = -1
        self._each = np.zeros(0, np.int64)

    def now(self, step: int, coverage: Sums) -> None:
        """Record the end of round `step`, with the number of clients that trained each coordinate."""
        covered = (coverage.values if isinstance(coverage, RunLengthArray) else coverage) > 0
        if covered.all():
            self._all, self._each = step, np.zeros(0, np.int64)
        elif covered.any():
            if self._all is not None:
                self._each, self._all = np.full(self._size, self._all, np.int64), None
            each = self._each
            map_chunks(self._size, lambda piece: np.copyto(each[piece], step, where=coverage[piece] > 0))

    @property
    def oldest(self) -> int:
        return int(self._each.min()) if self._all is None else self._all

    def state(self) -> State:
        """Return the round of all coordinates as a number, or the rounds [d] if they differ."""
        return {"rounds": self._each if self._all is None else self._all}

    def restore(self, state: State) -> None:
        rounds = state["rounds"]
        if isinstance(rounds, int):
            self._all, self._each = rounds, np.zeros(0, np.int64)
        else:
            self._all, self._each = None, np.array(rounds, np.int64)
