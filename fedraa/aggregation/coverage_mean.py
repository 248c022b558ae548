"""Means of deltas, for each coordinate (parameter) separately.

Coverage rule A takes the mean over the clients that trained a coordinate. Coverage rule B takes the mean over all
clients of the round.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.messages import Index, Mask, Vector
from fedraa.vectors.chunked import map_chunks, mask_or_true, scale_chunk
from fedraa.vectors.coverage_counter import CoverageCounter
from fedraa.vectors.reusable_buffer import ReusableBuffer
from fedraa.vectors.run_length import Sums


@dataclass
class CoverageMean(Aggregator):
    """Coverage rule A: the weighted mean over the clients that trained a coordinate.

    mean[i] = sum of n_k * delta_k[i] / sum of n_k, over the clients k that trained coordinate i, with the weights n_k.

    A coordinate that no client trained keeps its value. RA-Fed, SubDisMO, HeteroFL and FedRolex use this rule. If all
    clients train the full model, the result is the mean of FedAvg.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_delta", "_participants", "_weights")

    def start(self, size: int, clients: int) -> None:
        self._size = size
        self._room = ReusableBuffer(size, np.float32)
        self._weights = CoverageCounter(size, np.float32)
        self._begin_round()

    def _begin_round(self) -> None:
        self._delta: Vector | None = None
        self._participants = 0.0

    def _weighted_sum(self) -> Vector:
        if self._delta is None:
            self._delta = self._room.filled(0)
        return self._delta

    def add(self, contribution: ClientDelta) -> None:
        weight = np.float32(self._factor(contribution))
        total = self._weighted_sum()

        def add_piece(place: Index | slice, delta: Vector) -> None:
            total[place] += scale_chunk(weight, delta)

        contribution.change.join(add_piece)
        self._add_weight(contribution)
        self._participants += contribution.weight

    def _add_weight(self, contribution: ClientDelta) -> None:
        """Add the client's weight to the divisor of each coordinate that it trained."""
        self._weights.add(contribution.change, contribution.weight)

    def _factor(self, contribution: ClientDelta) -> float:
        """Return the factor of a delta in the weighted sum."""
        return contribution.weight

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        mean = self._weighted_sum()
        covered = totals.trained
        divisor = self._take_divisor()

        def divide_piece(piece: slice) -> None:
            where = mask_or_true(covered[piece])
            # The divisor is 0 for coordinates that no client trained. Their delta stays 0.
            np.divide(mean[piece], divisor[piece], out=mean[piece], where=where)

        map_chunks(self._size, divide_piece)
        self._begin_round()
        return mean, covered

    def _take_divisor(self) -> Sums:
        """Return the sum of weights for each coordinate [d]. Reset these sums for the next round."""
        return self._weights.finish()

    def memory(self, size: int, clients: int) -> int:
        return 12 * size


@dataclass
class FilledMean(CoverageMean):
    """Coverage rule B: the weighted mean over all clients of the round (shuffled submodels, Algorithm 1).

    A client that did not train a coordinate has the delta 0 there.
    """

    def _add_weight(self, contribution: ClientDelta) -> None:
        """Do nothing: the divisor is `_participants` for all coordinates."""

    def _take_divisor(self) -> Sums:
        return np.broadcast_to(np.float32(self._participants), self._size)
