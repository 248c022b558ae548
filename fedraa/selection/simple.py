"""Simple choices of clients: at random, by the number of samples, in turn, or by availability."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import SelectionContext


@PARTICIPATION.register("uniform")
@dataclass
class Uniform(CountedSelection):
    """A random choice of clients with equal probabilities, without replacement.

    Quarantined clients are excluded before the draw, so a round always has `count` clients. `sample:K` excludes them
    after the draw.
    """

    is_private: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ()

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        drawn: list[int] = rng.choice(view.candidates, view.count, replace=False).tolist()
        return drawn


@PARTICIPATION.register("weighted")
@dataclass
class Weighted(CountedSelection):
    """A random choice of clients without replacement. Probabilities are proportional to the numbers of samples."""

    state_fields: ClassVar[tuple[str, ...]] = ()

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        samples = view.samples[view.candidates]
        drawn: list[int] = rng.choice(view.candidates, view.count, replace=False, p=samples / samples.sum()).tolist()
        return drawn


@PARTICIPATION.register("round-robin")
@dataclass
class RoundRobin(CountedSelection):
    """A choice of clients in turn, in the order of their numbers."""

    is_private: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_next",)

    def __post_init__(self) -> None:
        self._next = 0

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        first = int(np.searchsorted(view.candidates, self._next))
        chosen: list[int] = np.roll(view.candidates, -first)[: view.count].tolist()
        self._next = (chosen[-1] + 1) % len(view.samples)
        return chosen


@PARTICIPATION.register("available")
@dataclass
class Available(CountedSelection):
    """A random choice of available clients. If they are too few, the clients that are available next are added."""

    is_private: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ()

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        shuffled: list[int] = rng.permutation(view.candidates).tolist()
        starts = {client: max(view.now, view.find_start(client, view.now)) for client in shuffled}
        return sorted(shuffled, key=starts.__getitem__)[: view.count]
