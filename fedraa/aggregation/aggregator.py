"""The interface of an aggregator, which combines the deltas of a round.

A delta is the trained weights minus the weights that the client received, on the trained coordinates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.state import Stateful
from fedraa.messages import Index, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.run_length import RunLengthArray

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class ClientDelta:
    """One client's part of a round.

    Attributes:
        client: The client, from 0.
        change: The delta as a view, which computes chunks that fit in the cache.
        weight: Weight of the client in the mean: 1, or its number of samples.
        lr: Local learning rate of the client, as the mean over the steps of its task.
        steps: Number of local steps of the task.
        fragment: The fixed fragment that it trained, None for the whole model and for sampled submodels.
        path_length: The length of the client's path if each local gradient has length 1: the sum over its gradients of
            their factors in the delta. For SGD it is the sum of the learning rates of its steps.
        discount: Factor of the delta by its staleness; 1 in rounds.
    """

    client: int
    change: DeltaView
    weight: float
    lr: float
    steps: int = 1
    fragment: int | None = None
    path_length: float = 1.0
    discount: float = 1.0

    @property
    def where(self) -> Index | slice:
        """Return the coordinates [k] that the client trained, as indices or as a slice."""
        return self.change.where

    @property
    def delta(self) -> Vector:
        """Return the delta [k] on these coordinates. The aggregator may overwrite it."""
        return self.change.delta


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """The counts of a finished round.

    Attributes:
        counts: Number of clients that trained each coordinate [d]. A slice can be read without computing the other
            entries.
        lr: Local learning rate of the client that reported last.
    """

    counts: Counts | RunLengthArray
    lr: float

    @cached_property
    def coverage(self) -> Counts:
        """Return the number of clients that trained each coordinate [d], read-only."""
        return np.asarray(self.counts)

    @property
    def covered(self) -> Mask:
        """Return the mask [d] of the coordinates that some client trained. The caller may change the mask."""
        return np.asarray(self.coverage > 0)

    @property
    def trained(self) -> Mask:
        """Return the mask of `covered`, read-only.

        The mask takes no memory if all coordinates were trained, or none.
        """
        if not isinstance(self.counts, RunLengthArray):
            return self.counts > 0
        covered = RunLengthArray(self.counts.starts, self.counts.values > 0, self.counts.size)
        return np.asarray(covered)


class Aggregator(Stateful, ABC):
    """A combination of a round's deltas: it takes the deltas one by one, returns the result, and begins again.

    A custom aggregator needs `add` and `finish`. It creates its state in `start` and reports its memory in `memory`. A
    run works on a copy. The defaults of the attributes suit most aggregators.

    Attributes:
        keeps: A name for state that outlives a round.
        refuses: Options of local training that break the aggregator, with the reason of each.
        accepts_signs: True if only the signs of a delta count.
        weighs: False if the weights of the clients do not count.
        corrects: True if values that the aggregator keeps for each client correct the client's delta.
        needs_reports: False if a round without any delta still moves the model.
        needed_client: The client without whose delta the model cannot move; None if there is none.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    accepts_signs: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    corrects: ClassVar[bool] = False
    needs_reports: ClassVar[bool] = True

    @property
    def needed_client(self) -> int | None:
        return None

    def bind(self, size: int, clients: int) -> Self:
        """Return a copy for one run, with a model of `size` parameters and `clients` clients."""
        own = deepcopy(self)
        own.start(size, clients)
        return own

    def start(self, size: int, clients: int) -> None:
        """Create the state."""

    def see(self, run: RunContext) -> None:
        """Receive the run before the first round, for example to find tensors that the aggregator treats differently.

        `run.params` [d] is the current model at any time. Raises InputError if the model is unsuitable.
        """

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """Return the numbers of coordinates that the client receives and sends in its next task.

        They determine the traffic. None means the number of coordinates of the client's submodel, both ways.
        """
        return None

    @abstractmethod
    def add(self, contribution: ClientDelta) -> None:
        """Add one client's delta."""

    @abstractmethod
    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        """Return the combined delta [d] of the round, float32, and the mask [d] of the coordinates that move.

        The mask is usually `totals.covered`.
        """

    def memory(self, size: int, clients: int) -> int:
        """Return the maximum memory of the aggregator in bytes. A run on a machine with less memory is refused."""
        return 0
