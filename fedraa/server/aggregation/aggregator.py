"""How a round's deltas become one: what an aggregator is given, and what it gives.

A delta is w_i - theta as sent, on the coordinates that the client trained.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components import Stateful
from fedraa.messages import Index, State, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one client adds to a round: its `delta` [k] on the coordinates `where`, a buffer that may be used up.

    `weight` is the client's in the mean (1, or its samples), `lr` its local learning rate.
    """

    client: int
    where: Index | slice
    delta: Vector
    weight: float
    lr: float


@dataclass(frozen=True, slots=True, eq=False)
class RoundTotals:
    """A round that is over: how many clients trained each coordinate [d], and the local learning rate."""

    coverage: Counts
    lr: float

    @property
    def covered(self) -> Mask:
        """Which coordinates [d] any client trained."""
        return np.asarray(self.coverage > 0)


class Coverage:
    """Counts the clients that train each coordinate; those that train all of them are counted once, not everywhere."""

    def __init__(self, size: int) -> None:
        self._start(size)

    def _start(self, size: int) -> None:
        self._count = np.zeros(size, np.int32)  # the system gives memory as it is written to
        self._partial = False
        self._whole = 0

    def add(self, where: Index | slice) -> None:
        if is_whole(where):
            self._whole += 1
        else:
            self._partial = True
            self._count[where] += 1

    def finish(self) -> Counts:
        """The counts [d] of a round, which may be read-only; a new round begins."""
        size, whole = len(self._count), np.int32(self._whole)
        if not self._partial:
            self._whole = 0
            return np.broadcast_to(whole, size)
        counts = self._count + whole
        self._start(size)
        return counts

    def state(self) -> State:
        return {"count": self._count if self._partial else 0, "whole": self._whole}

    def restore(self, state: State) -> None:
        self._count[:], self._whole = state["count"], state["whole"]
        self._partial = bool(self._count.any())


class Aggregator(Stateful, ABC):
    """Takes the deltas of a round one by one, gives what becomes of them, and starts over.

    An own one needs `add` and `finish`, `start` for what it keeps, and `memory` to say how much that is. `keeps` names
    state that outlives a round, `corrects` tells that deltas are corrected by what is remembered of each client. A run
    works on a copy of its own.
    """

    keeps: ClassVar[str] = ""
    corrects: ClassVar[bool] = False

    def bind(self, size: int, clients: int) -> Self:
        """A copy for one run, of a model of `size` parameters and so many clients."""
        own = deepcopy(self)
        own.start(size, clients)
        return own

    def start(self, size: int, clients: int) -> None:
        """Makes room for what is kept."""

    def see(self, run: RunContext) -> None:
        """What it is bound to, before the first round, for one that treats some tensors in their own way.

        `run.params` [d] is the model as it stands at any time. ValueError if the model does not suit it.
        """

    def moves(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """How many coordinates go down and up with the client's next task, if not those of its part of the model."""
        return None

    @abstractmethod
    def add(self, contribution: Contribution) -> None:
        """One client's delta comes in."""

    @abstractmethod
    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        """The round's delta [d], float32, and which coordinates [d] it moves; mostly `totals.covered`."""

    def memory(self, size: int, clients: int) -> int:
        """Bytes that it takes at most; a run that has not so much is refused."""
        return 0

    def add_pieces(self, pieces: Sequence[Contribution]) -> None:
        """One client's delta comes in, in several pieces."""
        self.add(joined(pieces))


def add_pieces(aggregator: Aggregator, pieces: Sequence[Contribution]) -> None:
    """One client's delta goes to the aggregator."""
    if len(pieces) == 1:
        aggregator.add(pieces[0])
    elif isinstance(aggregator, Aggregator):
        aggregator.add_pieces(pieces)
    else:  # another may have no such method
        aggregator.add(joined(pieces))


def joined(pieces: Sequence[Contribution]) -> Contribution:
    """One client's contribution, of pieces on different coordinates."""
    where = [np.arange(p.where.start, p.where.stop) if isinstance(p.where, slice) else p.where for p in pieces]
    return replace(pieces[0], where=np.concatenate(where), delta=np.concatenate([p.delta for p in pieces]))


def is_whole(where: Index | slice) -> bool:
    """Whether these are all coordinates of a model."""
    return isinstance(where, slice) and where == slice(None)


def spread(coverage: Counts, clients: int) -> dict[str, int]:
    """What the log says of a round's coverage [d] by so many clients."""
    if coverage.strides == (0,):  # all the same
        coverage, size = coverage[:1], len(coverage)
    else:
        size = 1
    covered = coverage > 0
    return {
        "coverage_min": int(coverage.min()),
        "coverage_max": int(coverage.max()),
        "uncovered": int((~covered).sum()) * size,
        "coverage_min_trained": int(coverage.min(initial=clients, where=covered)) if covered.any() else 0,
    }
