"""Deltas whose coordinates are evened: what changes little goes further, within a step that is as long as before."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from fedraa.messages import Vector
from fedraa.numbers import UpToOne
from fedraa.server.async_rule import Arrival, AsyncModel, Taken
from fedraa.server.delta_mix import DeltaMix, add
from fedraa.vectors.chunked import less, over, squares, total
from fedraa.vectors.index_runs import places_of

LATELY = 100  # arrivals of a fragment over which squares are averaged
TINY = np.float32(1e-30)  # in place of squares of 0, which are divided by


@dataclass
class EvenedDelta(DeltaMix):
    """theta <- theta + a * c * delta / v^(even / 2), with a as in DeltaMix.

    v [d] is the mean square of what each coordinate's deltas were lately, and c keeps the norm of delta. With `even` 1
    all coordinates go equally far, as Adam has them; with less they are between that and their own lengths. Embeddings
    of rare words, which a mean of clients hardly moves, are what it is for: there a much larger `gain` holds.
    """

    even: UpToOne = 0.5

    keeps: ClassVar[str] = "squares of deltas [d]"

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._squares = np.zeros(len(model.params), np.float32)
        self._arrivals = [0] * model.fragments

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        self._arrivals[arrival.fragment] += 1
        evened, stretch = self._evened(arrival, np.float32(1 / min(LATELY, self._arrivals[arrival.fragment])))
        weight = self.weight(arrival.staleness, arrival.balance)
        common = model.common[arrival.fragment] if model.common else None
        add(model.params, arrival.places, weight * stretch, evened, None, common, self.in_common)
        return Taken(weight)

    def _evened(self, arrival: Arrival, share: np.float32) -> tuple[Vector, float]:
        """delta / v^(even / 2) [k], and c; delta has the `share` in v."""
        evened, power = np.empty_like(arrival.new), np.float32(-self.even / 2)

        def even(piece: slice) -> tuple[list[float], list[float]]:
            delta = less(arrival.new[piece], arrival.sent[piece])
            for place, part in places_of(arrival.places, piece):
                mean = self._squares[place]
                mean += share * (np.square(delta[part]) - mean)
                self._squares[place] = mean
                np.multiply(delta[part], np.maximum(mean, TINY) ** power, out=evened[piece][part])
            return squares(delta), squares(evened[piece])

        sums = over(len(evened), even)
        before, after = (total(list(chain.from_iterable(each[at] for each in sums))) for at in (0, 1))
        return evened, (before / after) ** 0.5 if after else 1.0

    def memory(self, size: int, clients: int) -> int:
        return 4 * size

    def state(self) -> dict[str, Any]:
        return {"squares": self._squares, "arrivals": self._arrivals}

    def restore(self, state: dict[str, Any]) -> None:
        self._squares[:], self._arrivals = state["squares"], list(state["arrivals"])
