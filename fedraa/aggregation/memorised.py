"""RAM-Fed's mean: corrected by what the server remembers of every client."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import Aggregator, Contribution, RoundTotals
from fedraa.messages import Index, Vector
from fedraa.submodels.assignment import Mask
from fedraa.vectors.chunked import over, scratch
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.reusable_buffer import Room


@dataclass
class Memorised(Aggregator):
    """RAM-Fed, Algorithm 2: the server remembers every client's latest update of every coordinate.

    Updates are in gradient units, Delta = -delta / lr. v = mean_n u_n + (1/Gamma) sum over covering clients of
    (Delta_n - u_n), the second term only where Gamma > 0; theta -= lr v; then u_n <- Delta_n where trained.
    Uncovered coordinates move by the mean memory. `mifa` is the released code's form: v = mean_n u_n with the
    new u_n. A client's row [d] is made when it first takes part; before, it is 0.
    """

    mifa: bool = False

    keeps: ClassVar[str] = "u_n [N, d]"
    corrects: ClassVar[bool] = True

    def start(self, size: int, clients: int) -> None:
        self._clients = clients
        self._memory = ClientRows(size, clients, lambda: np.zeros(size, np.float32))
        self._mean = np.zeros(size, np.float32)
        self._change = np.zeros(size, np.float32)
        self._room = Room(size, np.float32)

    def add(self, contribution: Contribution) -> None:
        row, lr = self._memory[contribution.client], np.float32(-contribution.lr)

        def remember(place: Index | slice, delta: Vector) -> None:
            update, old = np.divide(delta, lr, out=scratch("update", len(delta))), row[place]
            self._change[place] += np.subtract(update, old, out=scratch("times", len(delta)))
            row[place] = update

        contribution.change.join(remember)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        size, clients, lr = len(self._mean), np.float32(self._clients), np.float32(-totals.lr)
        delta: Vector = last if (last := self._room.last()) is not None else self._room.filled(0)

        def mean(piece: slice) -> None:
            count, old = totals.counts[piece], self._mean[piece]
            correction = np.divide(self._change[piece], count, out=np.zeros_like(old), where=count > 0)
            v = old + correction
            self._mean[piece] = self._memory.sum(piece) / clients
            delta[piece] = lr * (self._mean[piece] if self.mifa else v)
            self._change[piece].fill(0)

        over(size, mean)
        return delta, np.broadcast_to(np.True_, size)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size * (clients + 3)

    def state(self) -> dict[str, Any]:
        return {"memory": self._memory.state(), "mean": self._mean, "change": self._change}

    def restore(self, state: dict[str, Any]) -> None:
        self._memory.restore(state["memory"])
        self._mean[:], self._change[:] = state["mean"], state["change"]
