"""Shuffled submodels: random masks, random kernels, and blocks in a random order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.numbers import round_up
from fedraa.rng import generator
from fedraa.submodels import indices
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import (
    LARGER_CAPACITY,
    Capacities,
    Pure,
    RoundContext,
    RunContext,
    SubmodelSampler,
    WithCapacities,
)


@dataclass(frozen=True)
class Bernoulli(WithCapacities):
    """Shuffled submodels, Algorithm 1: a client trains each scalar parameter with probability p.

    With `kernels`, a client trains ceil(p K) random units of every group of K units. The experiments in the paper use
    kernels. The theory uses scalars.

    Attributes:
        capacities: The probability p of each client.
        kernels: True to draw whole kernels (units), False to draw scalars.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        if self.kernels:
            run.check_units()
        else:
            smallest = min(self.capacities.levels)
            run.check_share(smallest, run.traced.names, "capacities", got=smallest, hint=LARGER_CAPACITY)

        def draw_assignment(context: RoundContext) -> Assignment:
            p = self.capacities.of(context.client, context.round, run.seed)
            rng = generator(run.seed, "bernoulli", context.round, context.client)
            if self.kernels:
                return run.units(indices.random_units(run.traced, p, rng))
            return Assignment(0, whole, rng.random(run.traced.size) < p)

        return Pure(draw_assignment)


@dataclass(frozen=True)
class ShuffledBlocks(WithCapacities):
    """Shuffled submodels, Algorithm 2: a client trains ceil(1/r) fixed blocks of the parameters, one per task.

    In each cycle, a client trains every block once. Clients of equal capacity train the same block at the same time.

    With `kernels`, the order of the blocks differs between width groups. With the same order, weights between different
    blocks of two adjacent layers would never be trained.

    Attributes:
        capacities: The fraction r of the model that each client trains.
        kernels: True for blocks of whole kernels (units), False for blocks of scalars.
        shuffled: True for a new order of the blocks in each cycle, False for a fixed order.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.5,)))
    kernels: bool = False
    shuffled: bool = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        traced = run.traced
        whole = run.whole()
        for level in self.capacities.levels:
            count = block_count(level)
            if self.kernels:
                problem = f"it divides the units into {count} blocks"
                run.check_parts(count, "capacities", problem, got=level)
            elif count > traced.size:
                problem = f"it divides the parameters into {count} blocks"
                raise InputError("capacities", problem, got=level, expected=f"{traced.size} blocks at most")
            else:
                run.check_share(1 / count, traced.names, "capacities", got=level, hint=LARGER_CAPACITY)
        masks_of: dict[int, Sequence[Assignment]] = {}

        def draw_assignment(context: RoundContext) -> Assignment:
            count = block_count(self.capacities.of(context.client, context.round, run.seed))
            if count == 1:
                return Assignment(0, whole)
            cycle, position = divmod(context.round, count)
            if self.kernels:
                blocks = indices.make_blocks(traced, count)
                order = self._draw_orders(run.seed, count, cycle, len(traced.groups))[:, position]
                kept = tuple(blocks[b][g] for g, b in enumerate(order))
                return run.units(kept, int(order[0]))
            if count not in masks_of:
                block_of = generator(run.seed, "blocks", count).permutation(traced.size) * count // traced.size
                masks_of[count] = [Assignment(b, whole, block_of == b) for b in range(count)]
            return masks_of[count][int(self._draw_orders(run.seed, count, cycle, 1)[0, position])]

        return Pure(draw_assignment)

    def _draw_orders(self, seed: int, count: int, cycle: int, groups: int) -> npt.NDArray[np.int64]:
        """Return the order in which a cycle trains the blocks of each group, [groups, count]."""
        if not self.shuffled:
            return (np.arange(count) + cycle * np.arange(groups)[:, None]) % count
        rng = generator(seed, "cycle", count, cycle)
        return np.stack([rng.permutation(count) for _ in range(groups)])


def block_count(ratio: float) -> int:
    """Return the number of blocks, ceil(1/r), for a client that trains the fraction r of the model."""
    return round_up(1 / ratio)
