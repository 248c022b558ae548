"""Base classes of the policies that choose the part of the model that a client trains.

A policy has only settings, and `bind` makes its sampler for one run. Random choices depend only on seed, round and
client, so only PruneFL's sampler has a state.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful
from fedraa.components.text import KIND
from fedraa.data.tree import Tree
from fedraa.errors import InputError, Uncuttable
from fedraa.messages import ExtraBuffers, Update, Vector
from fedraa.numbers import to_python_value
from fedraa.rng import generator
from fedraa.submodels.assignment import Assignment, Mask, Submodel
from fedraa.submodels.traced import IndexSet, Traced

AUTO = ("auto",)
"""A placeholder for capacity levels until the devices are known, from whose speeds the levels will follow."""
MAX_CACHED_SUBMODELS = 8
"""Number of submodels that a run caches. The index of a submodel takes twice as much memory as its parameters."""


SHARES = "shares of the model over 0 and at most 1"


@dataclass(frozen=True, eq=False)
class RunContext:
    """The run to which a submodel policy is bound.

    Attributes:
        traced: The model and its width groups (units that can be cut).
        clients: Number of clients.
        seed: Seed of the run.
        params: Initial parameters [d]. A policy's `bind` may change them.
        example: A minibatch of samples, with which a policy can find the shapes of activations.
        sent: Number of coordinates that clients send, without personal layers; None if they send all.
        durations: A function that returns the modelled duration of a task on the whole model for every client [N].
    """

    traced: Traced
    clients: int
    seed: int
    params: Vector | None = None
    example: Tree | None = None
    sent: int | None = None
    durations: Callable[[], npt.NDArray[np.float64]] | None = None
    _submodels: OrderedDict[tuple[bytes, ...], Submodel] = field(default_factory=OrderedDict, init=False, repr=False)

    def whole(self) -> Submodel:
        """Return the whole model as a submodel."""
        return self.submodel(self.traced.full())

    def submodel(self, kept: IndexSet) -> Submodel:
        """Return the dense submodel with these units. Results are cached."""
        key = tuple(np.asarray(units).tobytes() for units in kept)
        if key not in self._submodels:
            self._submodels[key] = Submodel.of(self.traced, kept)
            if len(self._submodels) > MAX_CACHED_SUBMODELS:
                self._submodels.popitem(last=False)
        self._submodels.move_to_end(key)
        return self._submodels[key]

    def units(self, kept: IndexSet, label: int = 0) -> Assignment:
        """Return the assignment of a dense submodel.

        Args:
            kept: For each width group of `traced.groups`, an ascending int64 array of the units to train.
            label: A number that the log shows.
        """
        return Assignment(label, self.submodel(kept))

    def masked(self, mask: Mask, label: int = 0) -> Assignment:
        """Return an assignment that trains only the coordinates in `mask` [d] of the whole model."""
        if mask.shape != (self.traced.size,) or mask.dtype != np.bool_:
            raise InputError("submodel", got=mask, expected=f"a mask of bool [{self.traced.size}]")
        return Assignment(label, self.whole(), mask)

    def rng(self, *index: int) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and these numbers."""
        return generator(self.seed, "policy", *index)

    def check_units(self, parts: int = 1, error: InputError | None = None) -> None:
        """Raise an InputError if the model has no width group, or one with fewer than `parts` units.

        Args:
            parts: The number of parts.
            error: An error about the option that sets the number of parts. It is raised with a completed message.
        """
        if not self.traced.groups:
            reasons = self.traced.explain_uncut()
            raise Uncuttable("model", f"no part of {type(self.traced.module).__name__} can be cut: {reasons}")
        smallest = min(self.traced.groups, key=lambda group: group.size)
        if error is not None and parts > smallest.size:
            expected = f"{smallest.size} at most, because group {smallest.name!r} has only {smallest.size} units"
            raise InputError(error.field, error.problem, got=error.got, expected=expected)


@dataclass(frozen=True, eq=False)
class RoundContext:
    """The round in which a policy draws one client's submodel.

    Attributes:
        client: The client, from 0.
        round: The round, from 0.
        position: Position of the client in the cohort, from 0.
        cohort: Number of clients in the cohort.
        now: Time on the run's clock, in time units.
        params: Global model [d] at the start of the round; read-only.
        run: The run to which the policy is bound.
    """

    client: int
    round: int
    position: int
    cohort: int
    now: float
    params: Vector
    run: RunContext


class SubmodelSampler(Stateful):
    """A policy in one run. It chooses the submodel of each client and receives the clients' updates.

    Attributes:
        asks: Names of buffers that client updates must contain besides the parameters.
        alone: Number of rounds at the start in which only the first client trains.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    state_fields: ClassVar[tuple[str, ...]] = ()
    alone: int = 0

    @property
    def extra_buffers(self) -> ExtraBuffers:
        """Return the additional buffers that a client receives and sends. They count as traffic."""
        return ExtraBuffers()

    def draw(self, context: RoundContext) -> Assignment:
        """Return the part of the model that a client trains in a round."""
        raise AssertionError("a sampler draws")

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        """Handle the update of one client.

        Args:
            assignment: The part of the model that the client trained.
            update: The client's update.
            weight: Weight of the client in the mean.
        """

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """Handle the end of a round.

        Args:
            params: Global model [d] after the round.
            delta: Mean delta [d] of the round.
            moved: Mask [d] of the coordinates that the round changed.
            scale: Learning rate times the mean number of local steps.
        """


class Pure(SubmodelSampler):
    """A sampler without state, made from a function."""

    def __init__(self, draw: Callable[[RoundContext], Assignment]) -> None:
        self._draw = draw

    def draw(self, context: RoundContext) -> Assignment:
        with convert_errors("submodel", self._draw):
            drawn = self._draw(context)
        if not isinstance(drawn, Assignment):
            field = f"submodel: {self._draw.__qualname__}"
            raise InputError(field, got=drawn, expected="the result of context.run.units or context.run.masked")
        return drawn


class SubmodelPolicy:
    """The choice of the part of the model that each client of a round trains.

    A custom policy needs only a pure `draw`:

        class FirstHalf(SubmodelPolicy):
            def draw(self, context):
                groups = context.run.traced.groups
                return context.run.units(tuple(np.arange(-(-group.size // 2)) for group in groups))

    Attributes:
        keeps: A description of the state that the policy holds at the server, for messages about memory.
        needs_squares: True if clients must send their squared gradients.
        scheduled: True if a scheduler assigns the submodels.
        whole: True if every client trains the whole model.
    """

    keeps: ClassVar[str] = ""
    needs_squares: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """The shares of the model that clients can get if the capacities follow from the speeds of the devices."""

    @property
    def full_width(self) -> bool:
        """True if clients hold the whole model, even if they train only some coordinates."""
        return False

    @property
    def cuts(self) -> bool:
        """True if the policy cuts units from the model."""
        return not self.whole

    @property
    def scales(self) -> bool:
        """True if training scales activations and the learning rate by the share of trained units."""
        return False

    @property
    def alone(self) -> int:
        """Number of rounds at the start in which only the first client trains."""
        return 0

    def draw(self, context: RoundContext) -> Assignment:
        """Return the part of the model that the client trains in this round."""
        raise InputError("submodel", f"{type(self).__name__} has no draw", hint="define draw(self, context)")

    def bind(self, run: RunContext) -> SubmodelSampler:
        """Return the sampler for one run.

        Raises:
            InputError: The policy cannot use the model.
        """
        return Pure(self.draw)

    def submodels(self, traced: Traced) -> tuple[IndexSet, ...]:
        """Return the submodels that a scheduler can assign. The default is the whole model only."""
        return (traced.full(),)


@dataclass(frozen=True)
class Capacities:
    """The share of the model that each client trains.

    Client n has the share `levels[n % len(levels)]`, or with `redraw` a random one in each round.

    Attributes:
        levels: Shares of the model, or auto if they follow from the speed of each device.
        redraw: True if each client gets a random level in every round.
    """

    levels: tuple[Any, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    redraw: bool = False

    def __post_init__(self) -> None:
        levels: Any = to_python_value(self.levels)
        if not isinstance(levels, tuple):
            levels = (levels,)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "redraw", to_python_value(self.redraw))
        if self.levels != AUTO:
            for level in self.levels:
                if not _is_share(level):
                    raise InputError("capacities", got=level, expected=SHARES)
            object.__setattr__(self, "levels", tuple(map(float, self.levels)))
        if not self.levels:
            raise InputError("capacities", got=(), expected=SHARES)
        if not isinstance(self.redraw, bool):
            raise InputError("redraw", got=self.redraw, expected="True or False")

    @classmethod
    def from_speeds(cls, compute: npt.NDArray[np.float64], shares: tuple[float, ...]) -> "Capacities":
        """Return the capacities of clients with these compute speeds.

        A client gets the largest of `shares` that is at most its speed divided by the fastest client's speed.
        """
        speeds = compute / compute.max() * (1 + 1e-9)
        return cls(tuple(max((share for share in shares if share <= speed), default=min(shares)) for speed in speeds))

    def of(self, client: int, round: int, seed: int) -> float:
        """Return the share of the model that a client trains in a round.

        Args:
            client: The client, from 0.
            round: The round, from 0.
            seed: Seed of the run.
        """
        if self.redraw:
            return float(generator(seed, "capacity", round, client).choice(self.levels))
        return float(self.levels[client % len(self.levels)])


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


class WithCapacities(SubmodelPolicy):
    """Base class of policies that give each client a share of the model."""

    capacities: Capacities

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacities", make_capacities(self.capacities))


def make_capacities(source: Any) -> Capacities:
    """Return the Capacities that a tuple of shares, or a mapping from config.json, describes."""
    if isinstance(source, Capacities):
        return source
    if isinstance(source, Mapping) and source.get(KIND) == Capacities.__name__:
        return Capacities(**{name: value for name, value in source.items() if name != KIND})
    return Capacities(source)
