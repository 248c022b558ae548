"""The schedulers with which the Fed-RAA paper compares Gre-RAA (section 6). They ignore the delay bound."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from schedulers.bound import offline_sets
from schedulers.greedy import least_updated
from schedulers.protocol import Costs, Ints, Scheduler, SchedulingContext


@dataclass
class Random(Scheduler):
    """A scheduler that chooses a random fragment that fits in the device's memory (Random Fed-RAA)."""

    bounded: ClassVar[bool] = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return int(rng.choice(_holdable_fragments(view)))


@dataclass
class MinimumPriority(Scheduler):
    """A scheduler that chooses the least updated fragment that fits in the device's memory (MP-RAA)."""

    bounded: ClassVar[bool] = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return least_updated(_holdable_fragments(view), view.counts, rng)


@dataclass
class Offline(Scheduler):
    """A scheduler that assigns fragments to each client before the run. The client trains them one after another."""

    bounded: ClassVar[bool] = False

    def plan(self, costs: Costs, bound: float) -> None:
        self.owned = offline_sets(costs)
        """The fragments of each client, in the order in which it trains them."""

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        owned = self.owned[view.client]
        return int(owned[view.turn % len(owned)])

    def state(self) -> dict[str, Any]:
        # `plan` computes the fragments again after a resume.
        return {}


def _holdable_fragments(view: SchedulingContext) -> Ints:
    """Return the fragments that fit in the device's memory. Their costs are finite."""
    return np.flatnonzero(np.isfinite(view.costs))
