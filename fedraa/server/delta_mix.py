"""Deltas instead of models: what a client changed is added, so that it undoes nothing that others did meanwhile."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.messages import Index, Vector
from fedraa.numbers import NotNegative, Positive
from fedraa.server.async_rule import Arrival, AsyncModel, AsyncRule, Taken, factor_at
from fedraa.server.participation_correction import balanced
from fedraa.server.staleness import STALENESS, among
from fedraa.vectors.chunked import accumulate
from fedraa.vectors.index_runs import Where, index_of


@dataclass
class DeltaMix(AsyncRule):
    """theta <- theta + a * (theta_new - theta_sent) with a = min(1, c_n * min(1, gain * M / N)) * s(staleness).

    It wants fragments given out evenly, as least-sent does: many deltas from the same values add up to too long a step.
    Of N clients that train at a time about N / M work on a fragment, all from nearly the same values: their deltas,
    each with the weight M / N, come to one mean step. `gain` makes it a longer one. On what all fragments hold
    all N work: with `spread` its weight is that of a single fragment, gain / N. `balance` is the power of data against
    speed in c_n.
    """

    gain: Positive = 1.2
    balance: NotNegative = 0.0
    staleness: Any = "constant"
    spread: bool = True

    blends: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._factor = STALENESS.make(self.staleness)
        self._share = 1.0

    def start(self, model: AsyncModel) -> None:
        self._factor = among(self._factor, model.at_work)
        self._share = min(1.0, self.gain * (model.fragments / model.at_work))
        self.in_common = min(1.0, self.gain / model.at_work) / self._share if self.spread else 1.0

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        weight = self.weight(arrival.staleness, arrival.balance)
        common = model.common[arrival.fragment] if model.common else None
        add(model.params, arrival.places, weight, arrival.new, arrival.sent, common, self.in_common)
        return Taken(weight)

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        return balanced(self._share, balance) * factor_at(staleness, self._factor)

    def state(self) -> dict[str, Any]:
        return {}


def add(
    params: Vector,
    where: Where,
    weight: float,
    new: Vector,
    sent: Vector | None = None,
    common: Index | None = None,
    in_common: float = 1.0,
) -> None:
    """theta <- theta + weight * (new - sent), in place on the coordinates `where`; element by element, as `blend`.

    At the places `common` of the buffers it is the share `in_common` of the weight.
    """
    if common is None or not len(common):
        accumulate(params, where, weight, new, sent)
        return
    held = index_of(where)
    held = common if isinstance(held, slice) else held[common]
    change = new[common] if sent is None else new[common] - sent[common]
    shared = params[held] + np.float32(weight * in_common) * change
    accumulate(params, where, weight, new, sent)
    params[held] = shared
