"""The schedulers that Gre-RAA is compared with (Fed-RAA, section 6): none of them keeps to the delay bound."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from schedulers.bound import offline_sets
from schedulers.greedy import least_updated
from schedulers.protocol import Costs, Ints, Scheduler, View


@dataclass
class Random(Scheduler):
    """Uniform over all fragments that the device can hold, whatever they cost (Random Fed-RAA)."""

    bounded: ClassVar[bool] = False

    def choose(self, view: View, rng: np.random.Generator) -> int:
        return int(rng.choice(_holdable(view)))


@dataclass
class MinimumPriority(Scheduler):
    """The least updated of all fragments (MP-RAA): Gre-RAA without a bound."""

    bounded: ClassVar[bool] = False

    def choose(self, view: View, rng: np.random.Generator) -> int:
        return least_updated(_holdable(view), view.counts, rng)


@dataclass
class Offline(Scheduler):
    """The fixed optimal assignment; a client that owns several fragments cycles through them."""

    bounded: ClassVar[bool] = False

    def plan(self, costs: Costs, bound: float) -> None:
        self._owned = offline_sets(costs)

    def choose(self, view: View, rng: np.random.Generator) -> int:
        owned = self._owned[view.client]
        return int(owned[view.turn % len(owned)])

    def state(self) -> dict[str, Any]:
        return {}  # what it keeps follows from the costs


def _holdable(view: View) -> Ints:
    """The fragments that the device can hold at all: those of finite cost."""
    return np.flatnonzero(np.isfinite(view.costs))
