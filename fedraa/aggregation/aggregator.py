"""The interface of an aggregator, which combines the deltas of a round's clients into one delta.

A delta is the trained weights minus the received weights, on the coordinates (parameters) that the client trained.
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

from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful
from fedraa.messages import Index, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.run_length import RunLengthArray

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class ClientDelta:
    """The delta of one client in a round, with facts that an aggregator may need.

    Attributes:
        client: Number of the client, from 0.
        change: The delta as a view that computes it in chunks of the size of the processor's cache.
        weight: Weight of the client in the mean: 1, or its number of samples.
        lr: Mean of the local learning rate over the steps of the client's task.
        steps: Number of local steps of the task.
        fragment: The fixed fragment that the client trained; None for the whole model and for sampled submodels.
        path_length: The length of the client's path through the weights if every gradient had length 1. For SGD, the
            sum of the learning rates of its steps.
        discount: Factor of the delta that depends on its staleness; 1 in rounds.
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
        """The coordinates [k] that the client trained, as indices or as a slice."""
        return self.change.where

    @property
    def delta(self) -> Vector:
        """The delta [k] on the coordinates `where`. The aggregator may overwrite this array."""
        return self.change.delta


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """The coverage and the learning rate of a finished round.

    Attributes:
        counts: Number of clients that trained each coordinate [d]. Reading a slice of a RunLengthArray needs memory
            only for this slice.
        lr: Local learning rate of the last client that sent its delta.
    """

    counts: Counts | RunLengthArray
    lr: float

    @cached_property
    def coverage(self) -> Counts:
        """Return the number of clients that trained each coordinate [d], read-only."""
        return np.asarray(self.counts)

    @property
    def covered(self) -> Mask:
        """Return a mask [d] of the coordinates that at least one client trained. It may be changed."""
        return np.asarray(self.coverage > 0)

    @property
    def trained(self) -> Mask:
        """Return the same mask as `covered`, read-only.

        It uses no memory if clients trained all coordinates or none.
        """
        if not isinstance(self.counts, RunLengthArray):
            return self.counts > 0
        covered = RunLengthArray(self.counts.starts, self.counts.values > 0, self.counts.size)
        return np.asarray(covered)


class Aggregator(Stateful, ABC):
    """A component that combines the deltas of a round.

    In each round the server calls `add` with every delta, and then `finish`. A custom aggregator defines both. It
    creates its state in `start` and reports its memory in `memory`. Every run uses a copy of the object.

    Attributes:
        keeps: A name for the state that the aggregator keeps between rounds; empty if it keeps none.
        refuses: Maps each option of local training that breaks the aggregator to the reason.
        accepts_signs: True if the aggregator uses only the signs of a delta.
        weighs: True if the aggregator uses the weights of the clients.
        corrects: True if the aggregator corrects the delta of a client by values that it keeps for this client.
        needs_reports: False if a round in which no client sent a delta also calls `finish`. True if it changes nothing.
        needed_client: The client whose delta every round needs; None if any clients suffice.
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
        with convert_errors("aggregator", own):
            own.start(size, clients)
        return own

    def start(self, size: int, clients: int) -> None:
        """Create the state for a model of `size` parameters and `clients` clients."""

    def see(self, run: RunContext) -> None:
        """Receive the run before its first round, for example to find certain tensors.

        `run.params` [d] is always the current model. Raises InputError if the aggregator cannot work with the model.
        """

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """Return the numbers of coordinates that the client receives and sends in its next task, as traffic.

        None means that the client receives and sends its submodel.
        """
        return None

    @abstractmethod
    def add(self, contribution: ClientDelta) -> None:
        """Add one client's delta."""

    @abstractmethod
    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        """Return the combined delta [d] in float32, and the mask [d] of the coordinates to change.

        The mask is usually `totals.covered`. Coordinates outside the mask keep their values.
        """

    def memory(self, size: int, clients: int) -> int:
        """Return the maximum memory in bytes. A run raises InputError if the machine has less."""
        return 0
