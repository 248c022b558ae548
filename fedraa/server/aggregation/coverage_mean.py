"""Means per coordinate over the clients that trained it, or over all participants."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.messages import Index, Vector
from fedraa.server.aggregation.aggregator import Aggregator, Contribution, RoundTotals
from fedraa.server.aggregation.tally import Tally
from fedraa.server.passes import all_or, over
from fedraa.submodels.assignment import Mask


@dataclass
class Covered(Aggregator):
    """Coverage rule A: the weighted mean over the clients that cover a coordinate.

    A coordinate that no client covers is not moved (RA-Fed, SubDisMO, HeteroFL, FedRolex; FedAvg with full models).
    Clients that train everything are weighed once, not at every coordinate; in rounds without others the weights of
    coordinates take no memory.
    """

    def start(self, size: int, clients: int) -> None:
        self._delta = np.zeros(size, np.float32)  # the system gives memory as it is written to
        self._weights = Tally(size, np.float32)
        self._participants = 0.0

    def add(self, contribution: Contribution) -> None:
        weight = np.float32(contribution.weight)

        def add(place: Index | slice, delta: Vector) -> None:
            self._delta[place] += weight * delta

        contribution.change.each(add)
        self._weights.add(contribution.change, contribution.weight)
        self._participants += contribution.weight

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        mean, size, covered, divisor = self._delta, len(self._delta), totals.covered, self._divisor()

        def divide(piece: slice) -> None:
            where = all_or(covered[piece])
            np.divide(mean[piece], divisor[piece], out=mean[piece], where=where)  # where none covers it is 0

        over(size, divide)
        self.start(size, 0)
        return mean, covered

    def _divisor(self) -> Vector:
        """By what each coordinate [d] is divided; what there is of it begins anew."""
        return self._weights.finish()

    def memory(self, size: int, clients: int) -> int:
        return 12 * size

    def state(self) -> dict[str, Any]:
        weights = self._weights.state()
        return {
            "gain": self._delta if self._participants else 0.0,
            "weight": weights["count"],
            "participants": self._participants,
            "whole_weight": weights["whole"],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._delta[:], self._participants = state["gain"], state["participants"]
        self._weights.restore({"count": state["weight"], "whole": state["whole_weight"]})


@dataclass
class Filled(Covered):
    """Coverage rule B: the mean over all participants, gaps filled with the old value.

    Those that do not cover a coordinate count with the old value, so a step shrinks with its coverage (shuffled
    submodels, Algorithm 1).
    """

    def _divisor(self) -> Vector:
        return np.broadcast_to(np.float32(self._participants), len(self._delta))
