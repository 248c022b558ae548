"""What becomes of a round's gains: means per coordinate over the clients that trained it."""

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector


class CoverageMean:
    """Coverage rule A: each coordinate's gain is the weighted mean over the clients that cover it.

    Gains are w_i - theta as sent. A coordinate that no client covers has gain 0, so that the global value
    stays bit for bit (RA-Fed, SubDisMO, HeteroFL, FedRolex; with full models it is FedAvg).
    """

    def __init__(self, size: int) -> None:
        self._gain = np.zeros(size, np.float32)
        self._weight = np.zeros(size, np.float32)
        self._count = np.zeros(size, np.int32)

    def add(self, gain: Vector, weight: float, index: Index | None) -> None:
        """One client's gain [k] on the coordinates `index` [k] (None: all)."""
        where = slice(None) if index is None else index
        self._gain[where] += np.float32(weight) * gain
        self._weight[where] += np.float32(weight)
        self._count[where] += 1

    def finish(self) -> tuple[Vector, npt.NDArray[np.int32]]:
        """The mean gain [d] and the coverage counts [d] of the round; the next one starts empty."""
        mean = np.divide(self._gain, self._weight, out=np.zeros_like(self._gain), where=self._count > 0)
        count = self._count.copy()
        for total in (self._gain, self._weight, self._count):
            total.fill(0)
        return mean, count
