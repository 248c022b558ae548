"""Means per coordinate over the clients that trained it, or over all participants."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.messages import Vector
from fedraa.server.aggregation.aggregator import Aggregator, Contribution, RoundTotals
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
        self._weight = np.zeros(size, np.float32)
        self._partial = False
        self._participants = 0.0
        self._whole_weight = np.float32(0)

    def add(self, contribution: Contribution) -> None:
        where, delta, weight = contribution.where, contribution.delta, np.float32(contribution.weight)
        self._participants += contribution.weight
        if isinstance(where, slice):
            self._delta += np.multiply(delta, weight, out=delta)
            self._whole_weight += weight
        else:
            self._partial = True
            self._delta[where] += weight * delta
            self._weight[where] += weight

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        mean, size, covered = self._delta, len(self._delta), totals.covered
        np.divide(mean, self._divisor(), out=mean, where=covered)  # where none covers it is 0
        self.start(size, 0)
        return mean, covered

    def _divisor(self) -> Vector | np.float32:
        if self._partial:
            return self._weight + self._whole_weight
        return self._whole_weight

    def memory(self, size: int, clients: int) -> int:
        return 12 * size

    def state(self) -> dict[str, Any]:
        return {
            "gain": self._delta,
            "weight": self._weight,
            "participants": self._participants,
            "whole_weight": self._whole_weight,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._delta[:], self._weight[:] = state["gain"], state["weight"]
        self._partial = bool(self._weight.any())
        self._participants, self._whole_weight = state["participants"], np.float32(state["whole_weight"])


@dataclass
class Filled(Covered):
    """Coverage rule B: the mean over all participants, gaps filled with the old value.

    Those that do not cover a coordinate count with the old value, so a step shrinks with its coverage (shuffled
    submodels, Algorithm 1).
    """

    def _divisor(self) -> Vector | np.float32:
        return np.float32(self._participants)
