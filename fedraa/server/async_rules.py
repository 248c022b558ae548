"""Rules of an asynchronous server: what becomes of the model when an update arrives."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedraa.messages import Index, Vector
from fedraa.rundir.checkpoint import State
from fedraa.server.staleness import STALENESS


class Rule(Protocol):
    """What becomes of an arrival; returns its weight and whether the model is a new version now."""

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        """`params` [d] changes in place on the coordinates `where`; `new` and `sent` [k] are what came and went."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True)
class StalenessMix:
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness) (FedAsync, Fed-RAA)."""

    mixing: float = 0.6
    staleness: str = "constant"

    def bind(self, size: int) -> Rule:
        return self

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        mix = self.weight(stale)
        blend(params, where, new, mix)
        return mix, True

    def weight(self, stale: int) -> float:
        return self.mixing * STALENESS[self.staleness](stale)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """The mix keeps nothing."""


@dataclass(frozen=True)
class Buffer:
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * gain, every K arrivals.

    The version and the step count flushes; what is in the buffer when the run ends is dropped.
    """

    size: int = 10
    staleness: str = "polynomial"
    server_lr: float = 1.0

    keeps: ClassVar[str] = "buffer [d]"

    def bind(self, size: int) -> Rule:
        return _Buffered(self, np.zeros(size, np.float32))


@dataclass
class _Buffered:
    rule: Buffer
    total: Vector
    count: int = 0

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        weight = STALENESS[self.rule.staleness](stale)
        self.total[where] += np.float32(weight) * (new - sent)
        self.count += 1
        full = self.count == self.rule.size
        if full:
            params += np.float32(self.rule.server_lr / self.rule.size) * self.total
            self.total.fill(0)
            self.count = 0
        return weight * self.rule.server_lr / self.rule.size, full

    def state(self) -> State:
        return {"total": self.total, "count": self.count}

    def restore(self, state: State) -> None:
        self.total[:], self.count = state["total"], state["count"]


def blend(params: Vector, where: Index | slice, new: Vector, mix: float) -> None:
    """theta <- (1 - mix) theta + mix theta_new, in place on the coordinates `where`; element by element.

    However the coordinates are divided among calls, the bits are the same.
    """
    mixed = params[where]
    mixed *= np.float32(1 - mix)
    mixed += np.float32(mix) * new
    if not isinstance(where, slice):  # of which it is a view
        params[where] = mixed
