"""What becomes of a round's gains: means per coordinate over the clients that trained it.

A gain is w_i - theta as sent, on the coordinates that the client trained.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.rundir.checkpoint import State
from fedraa.submodels.policies.policies import Mask

Counts = npt.NDArray[np.int32]


class Aggregator(Protocol):
    """Takes the gains of a round one by one, gives their mean, and starts over."""

    def add(self, client: int, where: Index | slice, delta: Vector, weight: float, lr: float) -> None:
        """One client's gain on the coordinates `where`; the buffer is used up."""

    def finish(self, lr: float) -> tuple[Vector, Counts, Mask]:
        """The mean gain [d], the coverage counts [d], and which coordinates it moves [d]."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class CoverageMean:
    """Coverage rule A: the weighted mean over the clients that cover a coordinate.

    A coordinate that no client covers is not moved (RA-Fed, SubDisMO, HeteroFL, FedRolex; FedAvg with full
    models). With `fill`, rule B: the mean is over all participants, those that do not cover a coordinate
    count with the old value, so a step shrinks with its coverage (shuffled submodels, Algorithm 1). Clients that
    train everything are counted and weighed once, not at every coordinate; in rounds without others the weights and
    counts of coordinates take no memory.
    """

    def __init__(self, size: int, *, fill: bool = False) -> None:
        self._fill = fill
        self._start(size)

    def _start(self, size: int) -> None:
        self._delta = np.zeros(size, np.float32)  # the system gives memory as it is written to
        self._weight = np.zeros(size, np.float32)
        self._count = np.zeros(size, np.int32)
        self._partial = False
        self._participants = 0.0
        self._whole_weight, self._whole_count = np.float32(0), 0

    def add(self, client: int, where: Index | slice, delta: Vector, weight: float, lr: float) -> None:
        self._participants += weight
        if isinstance(where, slice):
            self._delta += np.multiply(delta, np.float32(weight), out=delta)
            self._whole_weight += np.float32(weight)
            self._whole_count += 1
        else:
            self._partial = True
            self._delta[where] += np.float32(weight) * delta
            self._weight[where] += np.float32(weight)
            self._count[where] += 1

    def finish(self, lr: float) -> tuple[Vector, Counts, Mask]:
        mean, size = self._delta, len(self._delta)
        if self._partial:
            count = self._count + np.int32(self._whole_count)
            weight = self._weight + self._whole_weight
        else:
            count = np.broadcast_to(np.int32(self._whole_count), size)
            weight = np.broadcast_to(self._whole_weight, size)
        covered = count > 0
        divisor = np.float32(self._participants) if self._fill else weight
        np.divide(mean, divisor, out=mean, where=covered)  # where none covers it is 0
        self._start(size)
        return mean, count, covered

    def state(self) -> State:
        return {
            "gain": self._delta,
            "weight": self._weight,
            "count": self._count,
            "participants": self._participants,
            "whole_weight": self._whole_weight,
            "whole_count": self._whole_count,
        }

    def restore(self, state: State) -> None:
        self._delta[:], self._weight[:], self._count[:] = state["gain"], state["weight"], state["count"]
        self._partial = bool(self._count.any())
        self._participants = state["participants"]
        self._whole_weight, self._whole_count = np.float32(state["whole_weight"]), state["whole_count"]


class MemorisedMean:
    """RAM-Fed, Algorithm 2: the server remembers every client's latest update of every coordinate.

    Updates are in gradient units, Delta = -gain / lr. v = mean_n u_n + (1/Gamma) sum over covering clients of
    (Delta_n - u_n), the second term only where Gamma > 0; theta -= lr v; then u_n <- Delta_n where trained.
    Uncovered coordinates move by the mean memory. `mifa` is the released code's form: v = mean_n u_n with the
    new u_n. Memory is one array of clients x d float32.
    """

    def __init__(self, size: int, clients: int, *, mifa: bool = False) -> None:
        self._mifa = mifa
        self._memory = np.zeros((clients, size), np.float32)
        self._mean = np.zeros(size, np.float32)
        self._change = np.zeros(size, np.float32)
        self._count = np.zeros(size, np.int32)

    def add(self, client: int, where: Index | slice, delta: Vector, weight: float, lr: float) -> None:
        update = delta / np.float32(-lr)
        self._change[where] += update - self._memory[client][where]
        self._memory[client][where] = update
        self._count[where] += 1

    def finish(self, lr: float) -> tuple[Vector, Counts, Mask]:
        correction = np.divide(self._change, self._count, out=np.zeros_like(self._change), where=self._count > 0)
        v = self._mean + correction
        self._mean = self._memory.mean(axis=0, dtype=np.float32)
        if self._mifa:
            v = self._mean
        count = self._count.copy()
        self._change.fill(0)
        self._count.fill(0)
        return (np.float32(-lr) * v).astype(np.float32), count, np.ones(len(count), bool)

    def state(self) -> State:
        return {"memory": self._memory, "mean": self._mean, "change": self._change, "count": self._count}

    def restore(self, state: State) -> None:
        self._memory[:], self._mean = state["memory"], state["mean"]
        self._change[:], self._count[:] = state["change"], state["count"]


@dataclass(frozen=True)
class Covered:
    """Mean over the clients that cover a coordinate (rule A)."""

    def bind(self, size: int, clients: int) -> Aggregator:
        return CoverageMean(size)

    def memory(self, size: int, clients: int) -> int:
        """Server bytes."""
        return 12 * size


@dataclass(frozen=True)
class Filled:
    """Mean over all participants, gaps filled with the old value (rule B)."""

    def bind(self, size: int, clients: int) -> Aggregator:
        return CoverageMean(size, fill=True)

    def memory(self, size: int, clients: int) -> int:
        return 12 * size


@dataclass(frozen=True)
class Memorised:
    """Mean corrected by every client's remembered update (RAM-Fed)."""

    mifa: bool = False

    keeps: ClassVar[str] = "u_n [N, d]"

    def bind(self, size: int, clients: int) -> Aggregator:
        return MemorisedMean(size, clients, mifa=self.mifa)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size * (clients + 3)
