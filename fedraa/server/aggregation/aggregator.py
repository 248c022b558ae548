"""How a round's deltas become one: what an aggregator is given, and what it gives.

A delta is w_i - theta as sent, on the coordinates that the client trained.
"""

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components import Stateful
from fedraa.messages import Index, Vector
from fedraa.server.aggregation.levels import Levels
from fedraa.server.change import Change
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one client adds to a round: the `change` of its part of the model.

    `weight` is the client's in the mean (1, or its samples), `lr` its local learning rate.
    """

    client: int
    change: Change
    weight: float
    lr: float

    @property
    def where(self) -> Index | slice:
        """The coordinates that it trained."""
        return self.change.where

    @property
    def delta(self) -> Vector:
        """What it changed on them [k], a buffer that may be used up."""
        return self.change.delta


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """A round that is over: how many clients trained each coordinate [d], and the local learning rate.

    Of the `counts` a piece can be had without the others.
    """

    counts: Counts | Levels
    lr: float

    @cached_property
    def coverage(self) -> Counts:
        """How many clients trained each coordinate [d]; to be read alone."""
        return np.asarray(self.counts)

    @property
    def covered(self) -> Mask:
        """Which coordinates [d] any client trained; an array of the caller's own."""
        return np.asarray(self.coverage > 0)

    @property
    def trained(self) -> Mask:
        """The same to be read alone, which takes no memory where all coordinates were trained, or none."""
        if not isinstance(self.counts, Levels):
            return self.counts > 0
        covered = Levels(self.counts.starts, self.counts.values > 0, self.counts.size)
        return np.asarray(covered)


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
