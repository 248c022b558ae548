"""State that rides along with rounds: what tasks carry besides the model, and what their returns change.

All of it lives at the server, keyed by the client's id, so that it survives any placement of work. Buffers
that the protocol would move between client and server are billed (`extra_buffers`).
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from fedraa.aggregation.aggregator import Contribution
from fedraa.messages import Extra, ExtraBuffers, State, Update, Vector
from fedraa.submodels.assignment import Assignment, Mask


@dataclass(frozen=True)
class AuxiliaryRun:
    """The run that it rides along with: parameters, clients, numbers in one sample, weight of the fresh gradient."""

    size: int
    clients: int
    inputs: int
    fresh: float


@dataclass
class NoAuxiliary:
    """Nothing rides along; the others change what they need.

    `keeps` names what is held at the server. `refuses` says why a local setting would break the mathematics. With
    `momentum` the server has one that clients may blend in, and `corrects` tells whether deltas are corrected by what
    is remembered of each client. `asks` names the further buffers that clients' answers must have.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    momentum: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers()
    asks: ClassVar[tuple[str, ...]] = ()

    def bind(self, run: AuxiliaryRun) -> Self:
        own = deepcopy(self)
        own.start(run)
        return own

    def start(self, run: AuxiliaryRun) -> None:
        """Makes room for what is kept."""

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        """Further buffers for the client's task."""
        return {}

    def receive(self, contribution: Contribution, assignment: Assignment, update: Update) -> None:
        """Takes in what came back."""

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """The round is over: `delta` [d] is its mean, `scale` the learning rate times the mean local steps."""

    def memory(self, size: int, clients: int, inputs: int) -> int:
        """Server bytes."""
        return 0

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Takes back what `state` gave."""
