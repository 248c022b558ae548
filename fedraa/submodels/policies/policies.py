"""Submodel policies of synchronous methods: which part of the model a client trains in a round.

A policy is a value; `bind` makes its drawer for one run. All that is random is a function of (seed, round,
client), so that drawers need no state of their own (PruneFL's shared mask is the exception). Masks that follow
blocks of the model or its current weights are in `masked.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.traced import IndexSet, Traced

Mask = npt.NDArray[np.bool_]
BITS = 8  # coordinates per byte of a bitmap


@dataclass(frozen=True, eq=False)
class Submodel:
    """A part of the model: its shape and where its buffer lies in the full vector (None: all of it)."""

    widths: tuple[int, ...]
    index: Index | None

    @classmethod
    def of(cls, traced: Traced, kept: IndexSet) -> "Submodel":
        widths = traced.widths(kept)
        whole = widths == tuple(group.size for group in traced.groups)
        return cls(widths, None if whole else traced.flat_index(kept))

    def take(self, params: npt.NDArray[np.generic]) -> Vector:
        """A copy of the part's coordinates [k] of a full vector [d]."""
        return params.astype(np.float32) if self.index is None else params[self.index].astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Assignment:
    """What one client trains: a dense part and, for element-wise methods, a mask [k] over it.

    `label` stands for the choice in the log. `sends_mask`: the server masks before it sends; otherwise the
    client gets the whole part and masks it itself (RA-Fed, SubDisMO).
    """

    label: int
    part: Submodel
    mask: Mask | None = None
    sends_mask: bool = True

    @property
    def where(self) -> Index | slice:
        """The coordinates of the full vector that are trained."""
        if self.mask is None:
            return slice(None) if self.part.index is None else self.part.index
        return np.flatnonzero(self.mask) if self.part.index is None else self.part.index[self.mask]

    def trained(self, buffer: Vector) -> Vector:
        """The trained coordinates of a buffer [k] of the part, in the order of `where`."""
        return buffer if self.mask is None else buffer[self.mask]

    def state(self) -> dict[str, object]:
        return {
            "label": self.label,
            "widths": list(self.part.widths),
            "index": self.part.index,
            "mask": self.mask,
            "sends_mask": self.sends_mask,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Assignment":
        part = Submodel(tuple(state["widths"]), state["index"])
        return cls(state["label"], part, state["mask"], state["sends_mask"])

    def bytes(self, coordinates: int, sent_back: Callable[[int], int]) -> tuple[int, int]:
        """Bytes down and up for a part of so many coordinates: where masked, a share of it and a bitmap.

        `sent_back` gives the bytes in which so many trained coordinates are sent back.
        """
        if self.mask is None:
            return 4 * coordinates, sent_back(coordinates)
        trained, bitmap = int(self.mask.sum()), -(-len(self.mask) // BITS)
        down = 4 * trained + bitmap if self.sends_mask else 4 * coordinates
        return down, sent_back(trained) + bitmap


@dataclass(frozen=True, eq=False)
class RoundContext:
    """One client's place in one round; `params` [d] is the global model at its start."""

    client: int
    round: int
    position: int
    cohort: int
    params: Vector


@dataclass(frozen=True, eq=False)
class RunContext:
    """The run that a policy is bound to."""

    traced: Traced
    clients: int
    seed: int

    def whole(self) -> Submodel:
        return Submodel.of(self.traced, self.traced.full())

    def check_units(self, parts: int = 1, why: str = "") -> None:
        """ValueError, a sentence that `why` begins, unless every width group can be cut into so many parts."""
        if not self.traced.groups:
            reasons = "; ".join(self.traced.uncut.values()) or "it has no hidden units"
            raise ValueError(f"model: nothing of {type(self.traced.module).__name__} can be cut: {reasons}")
        smallest = min(self.traced.groups, key=lambda group: group.size)
        if parts > smallest.size:
            raise ValueError(f"{why}; group {smallest.name!r} has only {smallest.size}")


class SubmodelSampler(Protocol):
    def draw(self, context: RoundContext) -> Assignment: ...


@dataclass(frozen=True)
class Pure:
    """A drawer that is one pure function of the turn."""

    draw: Callable[[RoundContext], Assignment]


@dataclass(frozen=True)
class Capacities:
    """Each client's share of the model: level n mod L of client n, or one drawn anew every round."""

    levels: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    redraw: bool = False

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("capacities: none given, expected shares of the model over 0 and at most 1")

    def of(self, client: int, round: int, seed: int) -> float:
        if self.redraw:
            return float(generator(seed, "capacity", round, client).choice(self.levels))
        return self.levels[client % len(self.levels)]


@dataclass(frozen=True)
class Full:
    """Every client trains the full model."""

    def bind(self, run: RunContext) -> SubmodelSampler:
        assignment = Assignment(0, run.whole())
        return Pure(lambda context: assignment)


@dataclass(frozen=True)
class Fragments:
    """Fixed disjoint fragments of the width groups, given out by a scheduler (Fed-RAA)."""

    ratios: tuple[float, ...]

    keeps: ClassVar[str] = "q(j) [M]"


@dataclass(frozen=True)
class Prefix:
    """HeteroFL: the first ceil(r K) units of every group, nested."""

    capacities: Capacities = field(default_factory=Capacities)

    def bind(self, run: RunContext) -> SubmodelSampler:
        run.check_units()
        parts: dict[float, Submodel] = {}

        def draw(context: RoundContext) -> Assignment:
            ratio = self.capacities.of(context.client, context.round, run.seed)
            if ratio not in parts:
                parts[ratio] = Submodel.of(run.traced, indices.prefix(run.traced, ratio))
            return Assignment(0, parts[ratio])

        return Pure(draw)


@dataclass(frozen=True)
class Rolling:
    """FedRolex: a window of ceil(r K) units that starts `stride` units further each round, wrapping."""

    capacities: Capacities = field(default_factory=lambda: Capacities(redraw=True))
    stride: int = 1

    def bind(self, run: RunContext) -> SubmodelSampler:
        run.check_units()

        def draw(context: RoundContext) -> Assignment:
            ratio = self.capacities.of(context.client, context.round, run.seed)
            start = context.round * self.stride
            return Assignment(start, Submodel.of(run.traced, indices.window(run.traced, ratio, start)))

        return Pure(draw)


@dataclass(frozen=True)
class DisjointGroups:
    """IST: every hidden layer shuffled on its own and dealt to the cohort in equal disjoint groups, each round."""

    def bind(self, run: RunContext) -> SubmodelSampler:
        def draw(context: RoundContext) -> Assignment:
            run.check_units(context.cohort, f"clients: {context.cohort} in one round each need units of their own")
            rng = generator(run.seed, "groups", context.round)
            groups = indices.disjoint(run.traced, context.cohort, rng)
            return Assignment(context.position, Submodel.of(run.traced, groups[context.position]))

        return Pure(draw)


@dataclass(frozen=True)
class Bernoulli:
    """Shuffled submodels, Algorithm 1: each element (or, structured, a share of the kernels) at random.

    `kernels` draws ceil(p K) units of every group, as the paper's experiments do; elements are its theory.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        if self.kernels:
            run.check_units()

        def draw(context: RoundContext) -> Assignment:
            p = self.capacities.of(context.client, context.round, run.seed)
            rng = generator(run.seed, "bernoulli", context.round, context.client)
            if self.kernels:
                return Assignment(0, Submodel.of(run.traced, indices.random_units(run.traced, p, rng)))
            return Assignment(0, whole, masks.bernoulli(run.traced, p, rng))

        return Pure(draw)


@dataclass(frozen=True)
class ShuffledBlocks:
    """Shuffled submodels, Algorithm 2: a fixed partition into B = ceil(1/r) blocks, each once per cycle.

    One permutation per cycle and capacity class, so that clients of equal capacity train the same block;
    `shuffled` False keeps the order (plain rolling). Elements are partitioned, or with `kernels` the units of
    every group: then each group has an order of its own, or the weights between different blocks of adjacent
    layers would never be trained.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False
    shuffled: bool = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        traced, whole = run.traced, run.whole()
        for level in self.capacities.levels:
            count = block_count(level)
            if self.kernels:
                run.check_units(count, f"capacities: {level:g} makes {count} blocks of units")
            elif count > traced.size:
                raise ValueError(
                    f"capacities: {level:g} makes {count} blocks; the model has only {traced.size} parameters"
                )
        masks_of: dict[int, Sequence[Assignment]] = {}

        def draw(context: RoundContext) -> Assignment:
            count = block_count(self.capacities.of(context.client, context.round, run.seed))
            if count == 1:
                return Assignment(0, whole)
            cycle, position = divmod(context.round, count)
            if self.kernels:
                blocks = indices.blocks(traced, count)
                order = self._orders(run.seed, count, cycle, len(traced.groups))[:, position]
                kept = tuple(blocks[b][g] for g, b in enumerate(order))
                return Assignment(int(order[0]), Submodel.of(traced, kept))
            if count not in masks_of:
                block_of = generator(run.seed, "blocks", count).permutation(traced.size) * count // traced.size
                masks_of[count] = [Assignment(b, whole, block_of == b) for b in range(count)]
            return masks_of[count][int(self._orders(run.seed, count, cycle, 1)[0, position])]

        return Pure(draw)

    def _orders(self, seed: int, count: int, cycle: int, groups: int) -> npt.NDArray[np.int64]:
        """The order of a cycle's blocks in each group [groups, count]."""
        if not self.shuffled:
            return (np.arange(count) + cycle * np.arange(groups)[:, None]) % count
        rng = generator(seed, "cycle", count, cycle)
        return np.stack([rng.permutation(count) for _ in range(groups)])


@dataclass(frozen=True)
class LayerCut:
    """SplitFed: the client holds the first `at` layers, the server the rest."""

    at: int = 2

    def bind(self, run: RunContext) -> SubmodelSampler:
        return Full().bind(run)


def block_count(ratio: float) -> int:
    """B = ceil(1/r)."""
    return int(np.ceil(round(1 / ratio, 9)))
