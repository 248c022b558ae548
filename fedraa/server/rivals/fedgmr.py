"""FedGMR: the model is the mean of the submodels that clients trained last."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.messages import Vector
from fedraa.server.async_rules import Arrival, AsyncModel, Buffered, Taken
from fedraa.submodels.assignment import Mask


@dataclass
class FedGMR(Buffered):
    """FedGMR (2025): theta_c = sum a_i n_i w_ic / sum a_i n_i over the clients whose last submodel has c.

    a_i = (staleness + 1)^-exponent as it was on arrival, n_i samples; every `size` arrivals. Where no submodel is,
    theta stays. It is models that are averaged, not deltas: what is stale and dense draws the model back.
    """

    size: int = 1
    exponent: float = 0.6

    keeps: ClassVar[str] = "w_i, m_i [N, d]"

    def start(self, model: AsyncModel) -> None:
        size = len(model.params)
        self._last: dict[int, tuple[Vector, Mask, float]] = {}  # trained [k], where [d], weight
        self._sum, self._weight = np.zeros(size), np.zeros(size)
        self._covered = np.zeros(size, np.int32)
        self._count = 0

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        if arrival.client in self._last:
            self._add(*self._last[arrival.client], sign=-1)
        mask = np.zeros(len(model.params), bool)
        mask[arrival.where] = True
        new = np.zeros(len(mask), np.float32)
        new[arrival.where] = arrival.new  # in the order of the model
        weight = float((arrival.staleness + 1) ** -self.exponent * arrival.samples)
        self._last[arrival.client] = (new[mask], mask, weight)
        self._add(*self._last[arrival.client], sign=1)
        self._count += 1
        full = self._count == self.size
        if full:
            there = self._covered > 0
            model.params[there] = (self._sum[there] / self._weight[there]).astype(np.float32)
            self._count = 0
        return Taken(weight / sum(one[2] for one in self._last.values()), full)

    def _add(self, new: Vector, mask: Mask, weight: float, *, sign: int) -> None:
        self._sum[mask] += sign * weight * new.astype(np.float64)
        self._weight[mask] += sign * weight
        self._covered[mask] += sign

    def memory(self, size: int, clients: int) -> int:
        return size * (5 * clients + 20)

    def state(self) -> dict[str, Any]:
        last = {str(client): {"new": n, "mask": m, "weight": w} for client, (n, m, w) in self._last.items()}
        sums = {"sum": self._sum, "weight": self._weight, "covered": self._covered}
        return {"last": last, **sums, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        self._last = {int(client): (one["new"], one["mask"], one["weight"]) for client, one in state["last"].items()}
        self._sum[:], self._weight[:], self._covered[:] = state["sum"], state["weight"], state["covered"]
        self._count = state["count"]
