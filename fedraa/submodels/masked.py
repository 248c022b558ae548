"""Policies of element-wise masks over the blocks of a model, or over its current weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Vector
from fedraa.streams import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.blocks import maskable
from fedraa.submodels.policies import Capacities, Choice, Drawer, Pure, Scene, Turn
from fedraa.submodels.traced import Traced

T = TypeVar("T")


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

        return Pure(draw)


@dataclass(frozen=True)
class Arbitrary:
    """RA-Fed, RAM-Fed: regions of neurons (Definition 1), masked by the client.

    The regions are contiguous equal parts of the units of every width group. Level L trains 2 of 4 regions, S
    one, MIX half the clients each. Round 0 trains everything; every `uncovered_every`-th round all clients train
    the same last regions, so that the others are covered by nobody (0: never).
    """

    level: str = "L"
    parts: int = 4
    uncovered_every: int = 10

    def bind(self, scene: Scene) -> Drawer:
        scene.check_units(self.parts, f"submodel: {self.parts} regions need as many units in every group")
        whole = scene.whole()

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
            mask = np.zeros(scene.traced.size, bool)
            mask[scene.traced.flat_index(indices.regions(scene.traced, self.parts, chosen.tolist()))] = True
            return Choice(int((1 << chosen).sum()), whole, mask, sends_mask=False)

        return Pure(draw)


@dataclass(frozen=True)
class Pruned:
    """OAP: each client prunes the current global model to its share of largest weights, tensor by tensor.

    Shares are whole quarters, as in the paper's settings.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.75, 0.5)))
    parts: int = 4

    def bind(self, scene: Scene) -> Drawer:
        whole, names = scene.whole(), maskable(scene.traced)
        for level in self.capacities.levels:
            if not (level * self.parts).is_integer():
                raise ValueError(f"capacities: {level:g} given, expected whole parts of {self.parts}, like 0.5 or 0.75")
        ranks = _Last(lambda turn: rank_parts(scene.traced, turn.params, names, self.parts))

        def draw(turn: Turn) -> Choice:
            ratio = self.capacities.of(turn.client, turn.round, scene.seed)
            kept = int(ratio * self.parts)
            if kept == self.parts:
                return Choice(self.parts, whole)
            part = ranks(turn)
            return Choice(kept, whole, (part < 0) | (part >= self.parts - kept))

        return Pure(draw)


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
