"""The interface of aggregators. An aggregator combines the deltas of a round's clients into one delta.

A delta is the trained weights minus the received weights. It has the coordinates (parameters) that the client trained.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors, copy_component
from fedraa.components.state import Stateful
from fedraa.messages import Index, Mask, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.run_length import RunLengthArray

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class ClientDelta:
    """The delta of one client in a round, with facts about the client's task.

    Attributes:
        client: Number of the client, from 0.
        change: The delta, computed in chunks that fit into the processor's cache.
        weight: Weight of the client in the mean: 1 or its number of samples.
        lr: Mean local learning rate of the task's steps.
        steps: Number of local steps of the task.
        fragment: The fixed fragment that the client trained. None for the whole model and for sampled submodels.
        path_length: The distance that the weights would move if every gradient had length 1. For SGD, it is the sum of
            the learning rates of all steps.
        discount: A factor of the delta that depends on its staleness. It is 1 in rounds.
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
        """The coordinates [k] that the client trained, as indices or a slice."""
        return self.change.where

    @property
    def delta(self) -> Vector:
        """The delta [k] on the trained coordinates. The aggregator may overwrite this array."""
        return self.change.delta


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """The coverage and the learning rate of a finished round.

    Attributes:
        counts: Number of clients that trained each coordinate [d]. A RunLengthArray needs little memory if it is read
            slice by slice.
        lr: Mean over the clients that sent a delta of the mean learning rate of their task.
    """

    counts: Counts | RunLengthArray
    lr: float

    @cached_property
    def coverage(self) -> Counts:
        """Return the number of clients that trained each coordinate [d], read-only."""
        return np.asarray(self.counts)

    @property
    def covered(self) -> Mask:
        """Return a mask [d] of the coordinates that at least one client trained. The caller may change it."""
        return np.asarray(self.coverage > 0)

    @property
    def trained(self) -> Mask:
        """Return the same mask as `covered`, but read-only.

        If clients trained all coordinates or none, the mask needs no memory.
        """
        if not isinstance(self.counts, RunLengthArray):
            return self.counts > 0
        covered = RunLengthArray(self.counts.starts, self.counts.values > 0, self.counts.size)
        return np.asarray(covered)


class Aggregator(Stateful, ABC):
    """A component that combines the deltas of a round.

    In each round, the server calls `add` with every delta, and then `finish`. A custom aggregator defines both methods.
    If it has a state, `start` creates the state and `memory` returns its size. Every run uses a copy of the object.

    Attributes:
        keeps: A name for the state that the aggregator has between rounds. Empty if it has none.
        refuses: The options of local training that the aggregator does not support, each with a reason.
        accepts_signs: True if the aggregator uses only the signs of a delta.
        weighs: True if the aggregator uses the weights of the clients.
        corrects: True if the aggregator corrects the delta of a client with stored values of this client.
        needs_reports: True if a round without any delta does not call `finish`, so the model stays the same.
        needed_client: A client that must send its delta in every round, or None.
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
        own = copy_component("aggregator", self)
        with convert_errors("aggregator", own):
            own.start(size, clients)
        return own

    def start(self, size: int, clients: int) -> None:
        """Create the state for a model of `size` parameters and `clients` clients."""

    def see(self, run: RunContext) -> None:
        """Prepare the aggregator for a run before the first round, for example by a search for certain tensors.

        `run.params` [d] is the current model, also in later rounds. Raises InputError if the aggregator does not
        support the model.
        """

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """Return how many coordinates the client receives and sends in its next task, to measure traffic.

        None means that the client receives and sends its whole submodel.
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
        """Return the largest number of bytes that the aggregator needs.

        A run raises InputError if the machine has less memory.
        """
        return 0
