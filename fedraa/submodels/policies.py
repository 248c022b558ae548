"""Submodel policies of synchronous methods: which part of the model a client trains in a round.

A policy is a value; `bind` makes its drawer for one run. All that is random is a function of (seed, round,
client), so that drawers need no state of their own (PruneFL's shared mask is the exception).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.streams import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.blocks import maskable
from fedraa.submodels.traced import IndexSet, Traced

T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
BITS = 8  # coordinates per byte of a bitmap


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the model: its shape and where its buffer lies in the full vector (None: all of it)."""

    widths: tuple[int, ...]
    index: Index | None

    @classmethod
    def of(cls, traced: Traced, kept: IndexSet) -> "Part":
        widths = traced.widths(kept)
        whole = widths == tuple(group.size for group in traced.groups)
        return cls(widths, None if whole else traced.flat_index(kept))

    def take(self, params: npt.NDArray[np.generic]) -> Vector:
        """A copy of the part's coordinates [k] of a full vector [d]."""
        return np.array(params if self.index is None else params[self.index], np.float32)


@dataclass(frozen=True, eq=False)
class Choice:
    """What one client trains: a dense part and, for element-wise methods, a mask [k] over it.

    `label` stands for the choice in the log. `sends_mask`: the server masks before it sends; otherwise the
    client gets the whole part and masks it itself (RA-Fed, SubDisMO).
    """

    label: int
    part: Part
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
    def restored(cls, state: Mapping[str, Any]) -> "Choice":
        part = Part(tuple(state["widths"]), state["index"])
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
class Turn:
    """One client's place in one round; `params` [d] is the global model at its start."""

    client: int
    round: int
    position: int
    cohort: int
    params: Vector


@dataclass(frozen=True, eq=False)
class Scene:
    """The run that a policy is bound to."""

    traced: Traced
    clients: int
    seed: int

    def whole(self) -> Part:
        return Part.of(self.traced, self.traced.full())


class Drawer(Protocol):
    def draw(self, turn: Turn) -> Choice: ...


@dataclass(frozen=True)
class _Pure:
    """A drawer that is one pure function of the turn."""

    draw: Callable[[Turn], Choice]


@dataclass(frozen=True)
class Capacities:
    """Each client's share of the model: level n mod L of client n, or one drawn anew every round."""

    levels: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    redraw: bool = False

    def of(self, client: int, round: int, seed: int) -> float:
        if self.redraw:
            return float(generator(seed, "capacity", round, client).choice(self.levels))
        return self.levels[client % len(self.levels)]


@dataclass(frozen=True)
class Full:
    """Every client trains the full model."""

    def bind(self, scene: Scene) -> Drawer:
        choice = Choice(0, scene.whole())
        return _Pure(lambda turn: choice)


@dataclass(frozen=True)
class Fragments:
    """Fixed disjoint fragments of the width groups, given out by a scheduler (Fed-RAA)."""

    ratios: tuple[float, ...]


@dataclass(frozen=True)
class Prefix:
    """HeteroFL: the first ceil(r K) units of every group, nested."""

    capacities: Capacities = field(default_factory=Capacities)

    def bind(self, scene: Scene) -> Drawer:
        parts: dict[float, Part] = {}

        def draw(turn: Turn) -> Choice:
            ratio = self.capacities.of(turn.client, turn.round, scene.seed)
            if ratio not in parts:
                parts[ratio] = Part.of(scene.traced, indices.prefix(scene.traced, ratio))
            return Choice(0, parts[ratio])

        return _Pure(draw)


@dataclass(frozen=True)
class Rolling:
    """FedRolex: a window of ceil(r K) units that starts `stride` units further each round, wrapping."""

    capacities: Capacities = field(default_factory=lambda: Capacities(redraw=True))
    stride: int = 1

    def bind(self, scene: Scene) -> Drawer:
        def draw(turn: Turn) -> Choice:
            ratio = self.capacities.of(turn.client, turn.round, scene.seed)
            start = turn.round * self.stride
            return Choice(start, Part.of(scene.traced, indices.window(scene.traced, ratio, start)))

        return _Pure(draw)


@dataclass(frozen=True)
class DisjointGroups:
    """IST: every hidden layer shuffled on its own and dealt to the cohort in equal disjoint groups, each round."""

    def bind(self, scene: Scene) -> Drawer:
        def draw(turn: Turn) -> Choice:
            rng = generator(scene.seed, "groups", turn.round)
            groups = indices.disjoint(scene.traced, turn.cohort, rng)
            return Choice(turn.position, Part.of(scene.traced, groups[turn.position]))

        return _Pure(draw)


@dataclass(frozen=True)
class Bernoulli:
    """Shuffled submodels, Algorithm 1: each element (or, structured, a share of the kernels) at random.

    `kernels` draws ceil(p K) units of every group, as the paper's experiments do; elements are its theory.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False

    def bind(self, scene: Scene) -> Drawer:
        whole = scene.whole()

        def draw(turn: Turn) -> Choice:
            p = self.capacities.of(turn.client, turn.round, scene.seed)
            rng = generator(scene.seed, "bernoulli", turn.round, turn.client)
            if self.kernels:
                return Choice(0, Part.of(scene.traced, indices.random_units(scene.traced, p, rng)))
            return Choice(0, whole, masks.bernoulli(scene.traced, p, rng))

        return _Pure(draw)


@dataclass(frozen=True)
class ShuffledBlocks:
    """Shuffled submodels, Algorithm 2: a fixed partition into B = ceil(1/r) blocks, each once per cycle.

    One permutation per cycle and capacity class, so that clients of equal capacity train the same block;
    `shuffled` False keeps the order (plain rolling). `kernels` partitions units, else elements.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False
    shuffled: bool = True

    def bind(self, scene: Scene) -> Drawer:
        whole = scene.whole()
        cut: dict[int, Sequence[Choice]] = {}

        def draw(turn: Turn) -> Choice:
            ratio = self.capacities.of(turn.client, turn.round, scene.seed)
            count = int(np.ceil(round(1 / ratio, 9)))
            if count not in cut:
                cut[count] = self._blocks(scene, whole, count)
            cycle, position = divmod(turn.round, count)
            order = np.arange(count)
            if self.shuffled:
                order = generator(scene.seed, "cycle", count, cycle).permutation(count)
            return cut[count][int(order[position])]

        return _Pure(draw)

    def _blocks(self, scene: Scene, whole: Part, count: int) -> Sequence[Choice]:
        if count == 1:
            return [Choice(0, whole)]
        if self.kernels:
            kept = indices.blocks(scene.traced, count)
            return [Choice(b, Part.of(scene.traced, block)) for b, block in enumerate(kept)]
        size = scene.traced.size
        block_of = generator(scene.seed, "blocks", count).permutation(size) * count // size
        return [Choice(b, whole, block_of == b) for b in range(count)]


@dataclass(frozen=True)
class FourWay:
    """SubDisMO: each round one random disjoint split of the block parameters into parts, shared by all.

    The low half of the clients trains one part, the rest two; parameters outside the blocks always train.
    """

    parts: int = 4

    def bind(self, scene: Scene) -> Drawer:
        whole, names = scene.whole(), maskable(scene.traced)
        split = _Last(
            lambda turn: masks.random_parts(scene.traced, self.parts, names, generator(scene.seed, "split", turn.round))
        )

        def draw(turn: Turn) -> Choice:
            count = 1 if turn.client < scene.clients // 2 else 2
            rng = generator(scene.seed, "parts", turn.round, turn.client)
            chosen = rng.choice(self.parts, count, replace=False)
            mask = np.logical_or.reduce([split(turn)[part] for part in chosen])
            return Choice(int((1 << chosen).sum()), whole, mask, sends_mask=False)

        return _Pure(draw)


@dataclass(frozen=True)
class Arbitrary:
    """RA-Fed, RAM-Fed: regions of the current global model, masked by the client.

    The regions are the quarters of every maskable tensor by the rank of |theta|. Level L trains 2 of 4
    regions, S one, MIX half the clients each. Round 0 trains everything; every `uncovered_every`-th round
    all clients train the same largest regions, so that the others are covered by nobody (0: never).
    """

    level: str = "L"
    parts: int = 4
    uncovered_every: int = 10

    def bind(self, scene: Scene) -> Drawer:
        whole, names = scene.whole(), maskable(scene.traced)
        quarters = _Last(lambda turn: rank_parts(scene.traced, turn.params, names, self.parts))

        def draw(turn: Turn) -> Choice:
            if turn.round == 0:
                return Choice(0, whole)
            large = self.level == "L" or (self.level == "MIX" and turn.client < scene.clients // 2)
            count = max(1, self.parts // 2) if large else 1
            if self.uncovered_every and turn.round % self.uncovered_every == 0:
                chosen = np.arange(self.parts - count, self.parts)
            else:
                rng = generator(scene.seed, "regions", turn.round, turn.client)
                chosen = rng.choice(self.parts, count, replace=False)
            part = quarters(turn)
            mask = (part < 0) | np.isin(part, chosen)
            return Choice(int((1 << chosen).sum()), whole, mask, sends_mask=False)

        return _Pure(draw)


@dataclass(frozen=True)
class Pruned:
    """OAP: each client prunes the current global model to its share of largest weights, tensor by tensor."""

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.75, 0.5)))
    parts: int = 4

    def bind(self, scene: Scene) -> Drawer:
        whole, names = scene.whole(), maskable(scene.traced)
        ranks = _Last(lambda turn: rank_parts(scene.traced, turn.params, names, self.parts))

        def draw(turn: Turn) -> Choice:
            ratio = self.capacities.of(turn.client, turn.round, scene.seed)
            kept = round(ratio * self.parts)
            if kept == self.parts:
                return Choice(self.parts, whole)
            part = ranks(turn)
            return Choice(kept, whole, (part < 0) | (part >= self.parts - kept))

        return _Pure(draw)


@dataclass(frozen=True)
class LayerCut:
    """SplitFed: the client holds the first `at` layers, the server the rest."""

    at: int = 2

    def bind(self, scene: Scene) -> Drawer:
        return Full().bind(scene)


@dataclass
class _Last(Generic[T]):
    """Remembers the value of one round: all clients of a round ask for the same."""

    make: Callable[[Turn], T]
    round: int = -1
    value: T | None = None

    def __call__(self, turn: Turn) -> T:
        if self.value is None or self.round != turn.round:
            self.round, self.value = turn.round, self.make(turn)
        return self.value


def rank_parts(traced: Traced, params: Vector, names: Sequence[str], parts: int) -> npt.NDArray[np.int8]:
    """Which of `parts` equal parts by rank of |value| within its tensor each coordinate is in: int8 [d].

    Part 0 holds the smallest values; -1 are coordinates of tensors not named.
    """
    part = np.full(traced.size, -1, np.int8)
    for name, shape, offset in zip(traced.names, traced.shapes, traced.offsets, strict=True):
        if name in names:
            size = int(np.prod(shape))
            order = np.argsort(np.abs(params[offset : offset + size]), kind="stable")
            part[offset + order] = np.arange(size) * parts // size
    return part
