"""Asynchronous schedulers: which fragment an idle client trains next (Fed-RAA, section 5 and Algorithm 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from schedulers.bound import Costs, Ints, offline_sets

# Costs are models: a shard with one sample more than another must not change which fragments a device may take,
# and the bound K*, itself one of the costs, must not be missed by an ulp.
TOLERANCE = 0.01


class Scheduler(Protocol):
    """Picks a fragment for a client from c[n, j], the delay bound and the updates per fragment so far."""

    def __init__(self, costs: Costs, bound: float) -> None: ...

    def feasible(self, client: int) -> Ints:
        """The fragments whose cost for this client is within the delay bound, ascending."""

    def choose(self, client: int, turn: int, counts: Ints, rng: np.random.Generator) -> int:
        """The fragment for the client's `turn`-th task; `counts` [M] are the updates per fragment, q(j)."""


def _least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Argmin of q over the candidates, ties uniformly at random.

    The paper's pseudocode keeps the first strictly smaller q from a random start, which is not uniform; its
    text says random, and that is what is done.
    """
    updates = counts[candidates]
    least = candidates[updates == updates.min()]
    return int(least[0] if least.size == 1 else rng.choice(least))


@dataclass
class _Bounded:
    costs: Costs
    bound: float

    def feasible(self, client: int) -> Ints:
        costs = self.costs[client]
        return np.flatnonzero((costs <= self.bound * (1 + TOLERANCE)) & np.isfinite(costs))

    def holdable(self, client: int) -> Ints:
        """The fragments that the device can hold at all: those of finite cost."""
        return np.flatnonzero(np.isfinite(self.costs[client]))


@dataclass
class GreRAA(_Bounded):
    """Greedy: among the fragments within the delay bound, the least updated one."""

    def choose(self, client: int, turn: int, counts: Ints, rng: np.random.Generator) -> int:
        return _least_updated(self.feasible(client), counts, rng)


@dataclass
class Random(_Bounded):
    """Uniform over all fragments that the device can hold, whatever they cost (Random Fed-RAA)."""

    def choose(self, client: int, turn: int, counts: Ints, rng: np.random.Generator) -> int:
        return int(rng.choice(self.holdable(client)))


@dataclass
class MinimumPriority(_Bounded):
    """The least updated of all fragments (MP-RAA): Gre-RAA without a bound."""

    def choose(self, client: int, turn: int, counts: Ints, rng: np.random.Generator) -> int:
        return _least_updated(self.holdable(client), counts, rng)


@dataclass
class Offline(_Bounded):
    """The fixed optimal assignment; a client that owns several fragments cycles through them."""

    owned: list[Ints] = field(init=False)

    def __post_init__(self) -> None:
        self.owned = offline_sets(self.costs)

    def choose(self, client: int, turn: int, counts: Ints, rng: np.random.Generator) -> int:
        return int(self.owned[client][turn % len(self.owned[client])])


SCHEDULERS: Mapping[str, type[Scheduler]] = MappingProxyType(
    {"gre-raa": GreRAA, "random": Random, "minimum-priority": MinimumPriority, "offline": Offline}
)
