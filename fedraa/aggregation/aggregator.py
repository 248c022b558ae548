"""The interface of an aggregator, which combines the deltas of a round.

A delta is the trained weights minus the weights that the client received, on the coordinates that it trained.
"""

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.state import Stateful
from fedraa.messages import Index, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import Change
from fedraa.vectors.run_length import Levels

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """One client's part of a round.

    Attributes:
        client: The client, from 0.
        change: The delta, computed in chunks that fit in the cache.
        weight: Weight of the client in the mean: 1, or its number of samples.
        lr: Local learning rate of the client.
    """

    client: int
    change: Change
    weight: float
    lr: float

    @property
    def where(self) -> Index | slice:
        """Coordinates [k] that the client trained, as indices or as a slice."""
        return self.change.where

    @property
    def delta(self) -> Vector:
        """The delta [k] on these coordinates. The aggregator may overwrite it."""
        return self.change.delta


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """The counts of a finished round.

    Attributes:
        counts: Number of clients that trained each coordinate [d]; it can be sliced without computing the rest.
        lr: Local learning rate of the round.
    """

    counts: Counts | Levels
    lr: float

    @cached_property
    def coverage(self) -> Counts:
        """Number of clients that trained each coordinate [d]; read-only."""
        return np.asarray(self.counts)

    @property
    def covered(self) -> Mask:
        """Mask [d] of the coordinates that a client trained; the caller may change it."""
        return np.asarray(self.coverage > 0)

    @property
    def trained(self) -> Mask:
        """The same mask, read-only. It takes no memory if all coordinates were trained, or none."""
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

        `run.params` [d] is the model as it stands at any time. Raises InputError if the model does not suit it.
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
