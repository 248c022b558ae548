"""Base classes of the policies, which choose the submodel that a client trains.

A policy has only settings. Its method `bind` creates a sampler for one run. Random choices depend only on the seed, the
round and the client, so most samplers have no state.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful
from fedraa.components.text import KIND
from fedraa.data.tree import Tree
from fedraa.errors import InputError, Uncuttable
from fedraa.messages import ExtraBuffers, Mask, Update, Vector
from fedraa.models.lora import Adapted
from fedraa.numbers import format_count, round_down, to_python_value
from fedraa.rng import generator
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.submodels.flat import find_layer_weights
from fedraa.submodels.traced import IndexSet, Traced

AUTO = ("auto",)
"""A placeholder for capacity levels until the devices are known, from whose speeds the levels will follow."""
MAX_CACHED_SUBMODELS = 8
"""Number of submodels that a run caches. The index of a submodel takes twice as much memory as its parameters."""
TWENTIETHS: tuple[float, ...] = tuple((np.arange(20, 0, -1) / 20).tolist())
"""The shares 1, 0.95 ... 0.05 for policies that can follow the speeds of the devices closely."""
SHARES = "shares of the model over 0 and at most 1"
LARGER_CAPACITY = "give a larger capacity"
FEWER_PARTS = "give fewer parts"


@dataclass(frozen=True, eq=False)
class RunContext:
    """The run to which a submodel policy is bound.

    Attributes:
        traced: The model and its width groups (units that can be cut).
        clients: Number of clients.
        seed: Seed of the run.
        params: Initial parameters [d]. A policy's `bind` may change them.
        example: A minibatch of samples, with which a policy can find the shapes of activations.
        shared: Mask [d] of the parameters that are sent, without personal layers. None if all are sent.
        durations: A function that returns the duration of a task on the whole model for each client [N].
    """

    traced: Traced
    clients: int
    seed: int
    params: Vector | None = None
    example: Tree | None = None
    shared: Mask | None = None
    durations: Callable[[], npt.NDArray[np.float64]] | None = None
    _submodels: OrderedDict[tuple[bytes, ...], Submodel] = field(default_factory=OrderedDict, init=False, repr=False)

    @property
    def sent(self) -> int | None:
        """The number of parameters that are sent. None if all are sent."""
        return None if self.shared is None else int(self.shared.sum())

    def whole(self) -> Submodel:
        """Return the whole model as a submodel."""
        return self.submodel(self.traced.full())

    def submodel(self, kept: IndexSet) -> Submodel:
        """Return the dense submodel with these units. The result is cached."""
        key = tuple(np.asarray(units).tobytes() for units in kept)
        if key not in self._submodels:
            self._submodels[key] = Submodel.of(self.traced, kept)
            if len(self._submodels) > MAX_CACHED_SUBMODELS:
                self._submodels.popitem(last=False)
        self._submodels.move_to_end(key)
        return self._submodels[key]

    def units(self, kept: IndexSet, label: int = 0) -> Assignment:
        """Return an assignment that trains the dense submodel with these units.

        Args:
            kept: The units to train: an ascending int64 array for each width group of `traced.groups`.
            label: A number that identifies the assignment in the log.
        """
        return Assignment(label, self.submodel(kept), by_size=True)

    def masked(self, mask: Mask, label: int = 0) -> Assignment:
        """Return an assignment that trains only the parameters for which `mask` [d] is True."""
        if mask.shape != (self.traced.size,) or mask.dtype != np.bool_:
            raise InputError("submodel", got=mask, expected=f"a mask of bool [{self.traced.size}]")
        return Assignment(label, self.whole(), mask)

    def rng(self, *index: int) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and these numbers."""
        return generator(self.seed, "policy", *index)

    def check_units(self) -> None:
        """Raise Uncuttable if the model has no width group."""
        if not self.traced.groups:
            reasons = self.traced.explain_uncut()
            raise Uncuttable("model", f"no part of {type(self.traced.module).__name__} can be cut: {reasons}")

    def check_share(self, share: float, names: Collection[str], field: str, *, got: object, hint: str) -> None:
        """Raise an InputError if a mask of single weights would leave a layer without a trained weight.

        The output of this layer would not depend on its input. Low-rank adapters may be empty, because they only add to
        the output of a frozen layer.

        Args:
            share: The smallest fraction of the weights that a client trains.
            names: Names of the parameters that are masked.
            field: The field of the error.
            got: The wrong value in this error.
            hint: A way to train more weights.
        """
        module = self.traced.module
        weights = find_layer_weights(module)
        for layer in module.modules():
            if isinstance(layer, Adapted):
                weights.difference_update(layer.parameters())
        sizes = {name: p.numel() for name, p in module.named_parameters() if p in weights and name in names}
        for name, size in sizes.items():
            if round_down(share * size) < 1:
                problem = f"a client would train less than one of the {format_count(size, 'weight')} of {name!r}"
                raise InputError(field, problem, got=got, hint=hint)

    def check_parts(self, parts: int, field: str, problem: str, *, got: object) -> None:
        """Raise an InputError if the model has no width group, or a group has fewer than `parts` units.

        Args:
            parts: The smallest number of units that each group must have.
            field: The field of the error if a group has fewer units.
            problem: The problem in this error.
            got: The wrong value in this error.
        """
        self.check_units()
        smallest = min(self.traced.groups, key=lambda group: group.size)
        if parts > smallest.size:
            units = format_count(smallest.size, "unit")
            expected = f"{smallest.size} at most, because group {smallest.name!r} has only {units}"
            raise InputError(field, problem, got=got, expected=expected)


@dataclass(frozen=True, eq=False)
class RoundContext:
    """One client in one round, for which a policy chooses a submodel.

    Attributes:
        client: The client, from 0.
        round: The round, from 0.
        position: Index of the client in the cohort, from 0.
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
    """A policy during one run. It chooses the submodel of each client and receives the updates of clients.

    Attributes:
        asks: Names of the buffers that client updates contain in addition to the parameters.
        alone: Number of rounds at the start in which only the first client trains.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    state_fields: ClassVar[tuple[str, ...]] = ()
    alone: int = 0

    @property
    def extra_buffers(self) -> ExtraBuffers:
        """Return the numbers of additional buffers that a client receives and sends. They count as traffic."""
        return ExtraBuffers()

    def draw(self, context: RoundContext) -> Assignment:
        """Return the submodel or mask that a client trains in a round."""
        raise AssertionError("a sampler draws")

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        """Handle the update of one client.

        Args:
            assignment: The assignment of the client.
            update: The client's update.
            weight: The client's weight in the mean of the updates.
        """

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """Handle the end of a round in which at least one client sent an update.

        Args:
            params: Global model [d] after the round.
            delta: Mean delta [d] of the clients.
            moved: Mask [d] of the parameters that the round changed.
            scale: Learning rate times the mean number of local steps.
        """


class Pure(SubmodelSampler):
    """A sampler without state. It calls a function to choose a submodel."""

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
    """A rule that chooses which part of the model each client of a round trains.

    A custom policy needs only the method `draw`, without side effects:

        class FirstHalf(SubmodelPolicy):
            def draw(self, context):
                groups = context.run.traced.groups
                return context.run.units(tuple(np.arange(-(-group.size // 2)) for group in groups))

    Attributes:
        keeps: The name of the policy's state at the server, for messages about memory.
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
        """True if clients hold the whole model, even if they train only some parameters."""
        return False

    @property
    def cuts(self) -> bool:
        """True if the policy cuts units from the model."""
        return not self.whole

    @property
    def scales(self) -> bool:
        """True if training scales activations and the learning rate by the fraction of trained units."""
        return False

    @property
    def alone(self) -> int:
        """Number of rounds at the start in which only the first client trains."""
        return 0

    def draw(self, context: RoundContext) -> Assignment:
        """Return the submodel or mask that a client trains in a round."""
        raise InputError("submodel", f"{type(self).__name__} has no draw", hint="define draw(self, context)")

    def bind(self, run: RunContext) -> SubmodelSampler:
        """Return the sampler for one run. Raises InputError if the policy cannot use the model."""
        return Pure(self.draw)

    def submodels(self, traced: Traced) -> tuple[IndexSet, ...]:
        """Return the submodels that a scheduler can assign. By default, it can only assign the whole model."""
        return (traced.full(),)


@dataclass(frozen=True)
class Capacities:
    """The fraction of the model that each client can train.

    Client n gets the fraction `levels[n % len(levels)]`.

    Attributes:
        levels: The fractions of the model. With `auto`, they follow from the speeds of the devices.
        redraw: True to give each client a random level in every round, in place of its fixed level.
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

        The limit of a client is its speed divided by the largest speed. Its capacity is the largest of `shares` that
        is at most this limit, or the smallest of `shares` if all are above the limit.
        """
        speeds = compute / compute.max() * (1 + 1e-9)
        return cls(tuple(max((share for share in shares if share <= speed), default=min(shares)) for speed in speeds))

    def of(self, client: int, round: int, seed: int) -> float:
        """Return the fraction of the model that a client trains in a round.

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
    """Base class of policies that give each client a fraction of the model."""

    capacities: Capacities

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacities", make_capacities(self.capacities))


def make_capacities(source: Any) -> Capacities:
    """Return capacities from a tuple of fractions, or from the fields in config.json."""
    if isinstance(source, Capacities):
        return source
    if isinstance(source, Mapping) and source.get(KIND) == Capacities.__name__:
        return Capacities(**{name: value for name, value in source.items() if name != KIND})
    return Capacities(source)
