"""Means per coordinate over the clients that trained it, or over all participants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.messages import Vector
from fedraa.server.aggregation.aggregator import Aggregator, Contribution, RoundTotals, is_whole
from fedraa.server.passes import accumulate, all_or, over
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
        self.add_pieces([contribution])

    def add_pieces(self, pieces: Sequence[Contribution]) -> None:
        self._participants += pieces[0].weight
        for piece in pieces:
            where, weight = piece.where, np.float32(piece.weight)
            accumulate(self._delta, where, weight, piece.delta)
            if is_whole(where):
                self._whole_weight += weight
            else:
                self._partial = True
                self._weight[where] += weight

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        mean, size, covered, divisor = self._delta, len(self._delta), totals.covered, self._divisor()

        def divide(piece: slice) -> None:
            by = divisor[piece] if isinstance(divisor, np.ndarray) else divisor
            np.divide(mean[piece], by, out=mean[piece], where=all_or(covered[piece]))  # where none covers it is 0

        over(size, divide)
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
            "gain": self._delta if self._participants else 0.0,
            "weight": self._weight if self._partial else 0.0,
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
