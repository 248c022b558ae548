"""Which part of the model a client trains in a round: what a policy sees, what it gives, and what of it lives on.

A policy is a value; `bind` makes its sampler for one run. All that is random is a function of (seed, round, client), so
that samplers need no state of their own (PruneFL's shared mask is the exception).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import calling
from fedraa.components.text import KIND
from fedraa.data.tree import Tree
from fedraa.errors import Uncuttable, short_text
from fedraa.messages import ExtraBuffers, Update, Vector
from fedraa.numbers import of_python
from fedraa.rng import generator
from fedraa.submodels.assignment import Assignment, Mask, Submodel
from fedraa.submodels.traced import IndexSet, Traced

AUTO = ("auto",)  # in place of the levels of capacities that follow from devices, as long as these are not known
REMEMBERED = 8  # submodels per run: each holds an index as large as its parameters twice over


@dataclass(frozen=True, eq=False)
class RunContext:
    """The run to which a submodel policy is bound.

    Attributes:
        traced: The model and its width groups.
        clients: Number of clients.
        seed: Seed of the run.
        params: Initial parameters [d]. A policy may change them when it is bound.
        example: A minibatch of samples, for shapes that depend on it.
    """

    traced: Traced
    clients: int
    seed: int
    params: Vector | None = None
    example: Tree | None = None
    _submodels: OrderedDict[tuple[bytes, ...], Submodel] = field(default_factory=OrderedDict, init=False, repr=False)

    def whole(self) -> Submodel:
        return self.submodel(self.traced.full())

    def submodel(self, kept: IndexSet) -> Submodel:
        """The dense submodel of these units; the same object for those who ask for the same, as far as remembered."""
        key = tuple(np.asarray(units).tobytes() for units in kept)
        if key not in self._submodels:
            self._submodels[key] = Submodel.of(self.traced, kept)
            if len(self._submodels) > REMEMBERED:
                self._submodels.popitem(last=False)
        self._submodels.move_to_end(key)
        return self._submodels[key]

    def units(self, kept: IndexSet, label: int = 0) -> Assignment:
        """The dense submodel of these units: one ascending int64 array per width group of `traced.groups`."""
        return Assignment(label, self.submodel(kept))

    def masked(self, mask: Mask, label: int = 0) -> Assignment:
        """The whole model, of which only the coordinates of `mask` [d] train."""
        if mask.shape != (self.traced.size,) or mask.dtype != np.bool_:
            raise ValueError(f"submodel: a mask is {mask.dtype} {mask.shape}; takes bool ({self.traced.size},)")
        return Assignment(label, self.whole(), mask)

    def rng(self, *index: int) -> np.random.Generator:
        """Randomness for an own policy, a function of the run's seed and these numbers."""
        return generator(self.seed, "policy", *index)

    def check_units(self, parts: int = 1, why: str = "") -> None:
        """ValueError, a sentence that `why` begins, unless every width group can be cut into so many parts."""
        if not self.traced.groups:
            reasons = self.traced.reasons()
            raise Uncuttable(f"model: nothing of {type(self.traced.module).__name__} can be cut: {reasons}")
        smallest = min(self.traced.groups, key=lambda group: group.size)
        if parts > smallest.size:
            raise ValueError(f"{why}; group {smallest.name!r} has only {smallest.size}")


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


class SubmodelSampler:
    """A policy at work in one run. Besides drawing it may follow what comes back, as PruneFL's mask does.

    `asks` names the further buffers that clients' answers must have. In so many rounds at the start, `alone`, only the
    first client trains.
    """

    asks: ClassVar[tuple[str, ...]] = ()
    alone: int = 0

    @property
    def extra_buffers(self) -> ExtraBuffers:
        """What it has clients move besides their submodel, for the bill."""
        return ExtraBuffers()

    def draw(self, context: RoundContext) -> Assignment:
        raise AssertionError("a sampler draws")

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        """Takes in what came back from a client that has that weight in the mean."""

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """The round is over: `delta` [d] is its mean, `scale` the learning rate times the mean local steps."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""


class Pure(SubmodelSampler):
    """A sampler that is one pure function of the round and the client."""

    def __init__(self, draw: Callable[[RoundContext], Assignment]) -> None:
        self._draw = draw

    def draw(self, context: RoundContext) -> Assignment:
        with calling("submodel", self._draw):
            drawn = self._draw(context)
        if not isinstance(drawn, Assignment):
            raise ValueError(
                f"submodel: {self._draw.__qualname__} gave {short_text(drawn)}; takes what context.run.units gives"
            )
        return drawn


class SubmodelPolicy:
    """Gives each client of a round its part of the model. An own one needs `draw` alone, a pure function:

        class FirstHalf(SubmodelPolicy):
            def draw(self, context):
                groups = context.run.traced.groups
                return context.run.units(tuple(np.arange(-(-group.size // 2)) for group in groups))

    `keeps` names the state that it holds at the server, `scheduled` tells whether a scheduler gives out its parts, and
    `whole` whether every client trains all of the model. If it `needs_squares`, clients send their squared gradients.
    """

    keeps: ClassVar[str] = ""
    needs_squares: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """Of which each client has one, where capacities follow from devices."""

    @property
    def cuts(self) -> bool:
        """Whether width groups of the model have to be known."""
        return not self.whole

    @property
    def scales(self) -> bool:
        """Whether activations are scaled by the inverse of the share that trains, the rate by the share."""
        return False

    @property
    def alone(self) -> int:
        """Rounds at the start in which the first client alone trains."""
        return 0

    def draw(self, context: RoundContext) -> Assignment:
        """What the client trains in this round."""
        raise ValueError(f"submodel: {type(self).__name__} has no draw")

    def bind(self, run: RunContext) -> SubmodelSampler:
        """Its sampler for one run; ValueError if the model does not suit it."""
        return Pure(self.draw)

    def submodels(self, traced: Traced) -> tuple[IndexSet, ...]:
        """The parts that a scheduler gives out; the whole model as one, unless there are several."""
        return (traced.full(),)


@dataclass(frozen=True)
class Capacities:
    """Each client's share of the model: level n mod L of client n, or one drawn anew every round."""

    levels: tuple[Any, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    redraw: bool = False

    def __post_init__(self) -> None:
        levels: Any = of_python(self.levels)
        object.__setattr__(self, "levels", levels if isinstance(levels, tuple) else (levels,))
        object.__setattr__(self, "redraw", of_python(self.redraw))
        if wrong := [each for each in self.levels if not _is_share(each)] if self.levels != AUTO else []:
            raise ValueError(f"capacities: got {short_text(wrong[0])}; takes shares of the model over 0 and at most 1")
        if self.levels != AUTO:
            object.__setattr__(self, "levels", tuple(map(float, self.levels)))
        if not self.levels:
            raise ValueError("capacities: none given, expected shares of the model over 0 and at most 1")
        if not isinstance(self.redraw, bool):
            raise ValueError(f"redraw: got {short_text(self.redraw)}; takes True or False")

    @classmethod
    def following(cls, compute: npt.NDArray[np.float64], shares: tuple[float, ...]) -> "Capacities":
        """For each client the largest of the `shares` that its speed is of the fastest one's; the smallest at least."""
        speeds = compute / compute.max() * (1 + 1e-9)
        return cls(tuple(max((share for share in shares if share <= speed), default=min(shares)) for speed in speeds))

    def of(self, client: int, round: int, seed: int) -> float:
        if self.redraw:
            return float(generator(seed, "capacity", round, client).choice(self.levels))
        return float(self.levels[client % len(self.levels)])


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


class WithCapacities(SubmodelPolicy):
    """A policy whose clients train shares of the model; `capacities` may be given as a tuple of these, too."""

    capacities: Capacities

    def __post_init__(self) -> None:
        given: Any = self.capacities
        if isinstance(given, Mapping) and given.get(KIND) == Capacities.__name__:  # as `describe` wrote it
            given = Capacities(**{name: value for name, value in given.items() if name != KIND})
        object.__setattr__(self, "capacities", given if isinstance(given, Capacities) else Capacities(given))
