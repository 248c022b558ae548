"""The round in which each coordinate was last trained."""

import numpy as np

from fedraa.messages import State
from fedraa.vectors.chunked import map_chunks
from fedraa.vectors.run_length import Sums, distinct_values


class LastTrained:
    """The round in which each coordinate [d] was last trained, or -1 for never.

    If the round is equal for all coordinates, one number is stored.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._all: int | None = -1
        self._rounds = np.zeros(0, np.int64)

    def now(self, step: int, coverage: Sums) -> None:
        """Record the round `step` for each coordinate that a client trained in it.

        Args:
            step: The round.
            coverage: For each coordinate [d], the number of clients that trained it in this round.
        """
        covered = distinct_values(coverage) > 0
        if covered.all():
            self._all = step
            self._rounds = np.zeros(0, np.int64)
        elif covered.any():
            if self._all is not None:
                self._rounds = np.full(self._size, self._all, np.int64)
                self._all = None
            rounds = self._rounds
            map_chunks(self._size, lambda piece: np.copyto(rounds[piece], step, where=coverage[piece] > 0))

    @property
    def oldest(self) -> int:
        """Return the smallest of the stored rounds; -1 if a coordinate was never trained."""
        if self._all is not None:
            return self._all
        return int(self._rounds.min())

    def state(self) -> State:
        """Return the round in which each coordinate was last trained [d]; one number if it is the same for all."""
        return {"rounds": self._rounds if self._all is None else self._all}

    def restore(self, state: State) -> None:
        rounds = state["rounds"]
        if isinstance(rounds, int):
            self._all = rounds
            self._rounds = np.zeros(0, np.int64)
        else:
            self._all = None
            self._rounds = np.array(rounds, np.int64)
