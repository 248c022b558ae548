"""Auxiliary state of methods in rounds, such as control variates: values that the server keeps besides the model.

The server also keeps the state of every client, so that any worker can train any client. `extra_buffers` counts the
traffic of buffers that a real client would exchange with the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.components.calls import convert_errors, copy_component
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.messages import Extra, ExtraBuffers, Mask, Update, Vector
from fedraa.submodels.assignment import Assignment


@dataclass(frozen=True)
class RoundStateContext:
    """The facts about a run that a round state needs.

    Attributes:
        size: Number of parameters, d.
        clients: Number of clients.
        grad_mix: The weight m of a client's gradient in local steps. The server's momentum has the weight 1 - m.
        params: The initial model [d].
        steps: Mean number of local steps of a task on the whole model, over all clients.
        rounds: The limit of rounds of the run, None without such a limit.
        cohort: Expected number of clients in a round, None if it is unknown.
    """

    size: int
    clients: int
    grad_mix: float
    params: Vector
    steps: float
    rounds: int | None
    cohort: float | None


@dataclass
class RoundState(Stateful):
    """State of a synchronous method besides the model, at the server or for each client.

    This base class has no state. Subclasses override the methods that they need.

    Attributes:
        keeps: A description of the state at the server, for messages about memory.
        refuses: Maps each option that breaks the method's mathematics to the reason. `_check_refused` in
            composition/compatibility.py lists the possible options.
        reads_deltas: True if `receive` reads the deltas of clients.
        momentum: True if the server sends a momentum that clients may blend into their gradients.
        corrects: True if deltas are corrected by the state of each client.
        extra_buffers: Number of buffers of the model's size that a client receives and sends besides the model, as
            traffic. Before the start, the expected duration of a task is computed from it.
        asks: Names of extra buffers that client updates must contain besides the parameters. The `replies` of the
            method's LocalAlgorithm have the same names.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    reads_deltas: ClassVar[bool] = False
    momentum: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers()
    asks: ClassVar[tuple[str, ...]] = ()
    state_fields: ClassVar[tuple[str, ...]] = ()

    @property
    def uses_rounds(self) -> bool:
        """True if the state depends on the run's limit of rounds, so that an extended run differs from a longer one."""
        return False

    def bind(self, run: RoundStateContext) -> Self:
        """Return a copy for one run, after `start`. Raise InputError if an attribute of a subclass is wrong."""
        own = copy_component("auxiliary", self)
        with convert_errors("auxiliary", own):
            own.start(run)
            asks: object = own.asks
        if not isinstance(asks, tuple) or not all(isinstance(name, str) for name in asks):
            problem = f"{type(own).__qualname__}.asks is wrong"
            raise InputError("auxiliary", problem, got=asks, expected="a tuple of names")
        return own

    def count_extra_buffers(self) -> ExtraBuffers:
        """Return `extra_buffers`. Raise InputError if it is wrong."""
        with convert_errors("auxiliary", self):
            buffers: object = self.extra_buffers
        if not isinstance(buffers, ExtraBuffers) or not all(type(count) is int and count >= 0 for count in buffers):
            problem = f"{type(self).__qualname__}.extra_buffers is wrong"
            raise InputError("auxiliary", problem, got=buffers, expected="an ExtraBuffers of whole numbers from 0")
        return buffers

    def start(self, run: RoundStateContext) -> None:
        """Allocate the state."""

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        """Return the buffers that the client's task carries besides the parameters, by name.

        A buffer with a value per parameter has the shape [k] of the submodel. `assignment.submodel.take(vector)` cuts
        it from a vector [d].
        """
        return {}

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        """Add a client update to the state.

        Other components also read the delta, so this method must not change it. `contribution.delta` is the whole delta
        as one array. `contribution.change.join(f)` is faster: after `receive` has returned, the server calls
        f(place, delta) for each chunk of the delta.

        Args:
            contribution: The client, its delta and its weight.
            assignment: The submodel that the client trained.
            update: The client update.
        """

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """Update the state at the end of a round.

        Args:
            params: The model [d] after the step. It may be changed in place where `moved` is True.
            delta: Mean delta of the round [d].
            moved: Mask [d] of the coordinates that the step may move.
            scale: Mean over the clients of (learning rate) * (number of local steps); 0 if no client has reported.
        """

    def memory(self, size: int, clients: int) -> int:
        """Return the bytes of the server's state with a model of `size` parameters."""
        return 0
