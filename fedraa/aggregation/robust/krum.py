"""Krum and Multi-Krum: use only the deltas with the closest neighbours (Blanchard et al. 2017).

n clients, at most f attackers, n >= 2f + 3:
    score_i = sum of the n - f - 2 smallest ||delta_i - delta_j||^2 over j != i
    Krum:        the delta with the smallest score              # ties: the client with the lowest number
    Multi-Krum:  plain mean of the m deltas with the smallest scores, m <= n - f

Submodels:
    distance of two clients = ||.||^2 on their common coordinates * d / number of common coordinates
    without a common coordinate, the distance of two clients is infinite
    with fixed fragments, the rule runs inside each fragment, on one mean delta of each client that trained the fragment
    for each coordinate, the selected deltas are averaged over the clients that trained it
    if too few clients trained a fragment or have common coordinates, the coordinate-wise median is used instead

Multi-Krum uses more deltas than Krum, so it learns faster. With unequal data, both rules discard honest clients.

Read next: aggregation/robust/rows.py (the rows of the clients), aggregation/robust/bulyan.py (Bulyan).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import (
    MIN_MAJORITY,
    Numbers,
    RobustAggregator,
    Rows,
    Votes,
    median_of_rows,
    stack_chunk,
    weighted_mean,
)
from fedraa.numbers import Count
from fedraa.vectors.chunked import map_chunks


@dataclass
class DistanceRule(RobustAggregator):
    """A rule that selects clients by the distances between their deltas, and combines the deltas of these clients.

    Attributes:
        attackers: The number of attackers that the rule withstands, f.
    """

    attackers: Count = 1

    weighs: ClassVar[bool] = False
    row_per_fragment: ClassVar[bool] = True

    @property
    def min_clients(self) -> int:
        return 2 * self.attackers + 3

    def count_tolerated(self, clients: int) -> int:
        return self.attackers

    def combine(self, votes: Votes) -> Numbers:
        total = np.zeros(self._size)
        count = np.zeros(self._size)
        unprotected = np.zeros(self._size, bool)
        for rows in votes.by_fragment():
            selected: list[int] = []
            if len(rows) >= self.min_clients:
                selected = self.select(square_distances(rows))
            if selected:
                result = self.join_rows([rows[i] for i in selected])
            else:
                result = median_of_rows(rows, MIN_MAJORITY)
                unprotected |= ~np.isnan(result)
            moved = ~np.isnan(result)
            total[moved] += result[moved]
            count[moved] += 1
        self.unprotected += int(unprotected.sum())
        return np.asarray(np.divide(total, count, out=np.full(self._size, np.nan), where=count > 0))

    @abstractmethod
    def select(self, squared: Numbers) -> list[int]:
        """Return the positions of the selected rows. If too few rows have common coordinates, the list is empty.

        The squared distances [n, n] are infinite on the diagonal.
        """

    def join_rows(self, rows: Rows) -> Numbers:
        """Return the combination [d] of the selected rows."""
        return weighted_mean(rows, np.ones(len(rows)))


@AGGREGATOR.register("krum")
@dataclass
class Krum(DistanceRule):
    """The delta with the smallest distances to other deltas (Krum, Blanchard et al. 2017)."""

    def select(self, squared: Numbers) -> list[int]:
        return select_best(score_rows(squared, self.attackers), 1)


@AGGREGATOR.register("multi-krum")
@dataclass
class MultiKrum(DistanceRule):
    """Mean of the deltas with the smallest distances to other deltas (Multi-Krum, Blanchard et al. 2017).

    Attributes:
        selected: Number of deltas in the mean, m. None means n - f. The rule needs at least m + f clients.
    """

    selected: Count | None = None

    @property
    def min_clients(self) -> int:
        return max(super().min_clients, (self.selected or 0) + self.attackers)

    def select(self, squared: Numbers) -> list[int]:
        count = self.selected or len(squared) - self.attackers
        return select_best(score_rows(squared, self.attackers), count)


def square_distances(rows: Rows) -> Numbers:
    """Return the squared distances [n, n] of the rows.

    The distance of two rows is computed on their common coordinates, and scaled to all d coordinates. It is infinite
    for rows without common coordinates, and on the diagonal.
    """
    n = len(rows)
    size = rows[0].size

    def measure_piece(piece: slice) -> tuple[Numbers, Numbers]:
        block = stack_chunk(rows, piece)
        squared = np.zeros((n, n))
        common = np.zeros((n, n))
        for i in range(n - 1):
            difference = block[i + 1 :] - block[i]
            missing = np.isnan(difference)
            difference[missing] = 0.0
            squared[i, i + 1 :] = np.einsum("ij,ij->i", difference, difference)
            common[i, i + 1 :] = (~missing).sum(axis=1)
        return squared, common

    squared = np.zeros((n, n))
    common = np.zeros((n, n))
    for chunk_squared, chunk_common in map_chunks(size, measure_piece):
        squared += chunk_squared
        common += chunk_common
    squared += squared.T
    common += common.T
    return np.asarray(np.divide(squared * size, common, out=np.full((n, n), np.inf), where=common > 0))


def score_rows(squared: Numbers, attackers: int, at_least: int = 0) -> Numbers:
    """Return Krum's score of each row [n].

    Args:
        squared: Squared distances [n, n], infinite on the diagonal.
        attackers: Number of attackers, f.
        at_least: Smallest number of neighbours that a score counts.
    """
    neighbours = max(at_least, len(squared) - attackers - 2)
    return np.asarray(np.sort(squared, axis=1)[:, :neighbours].sum(axis=1))


def select_best(scores: Numbers, count: int) -> list[int]:
    """Return the positions of the `count` smallest scores. Of equal scores, the first ones are taken.

    If one of the chosen scores is infinite, the list is empty.
    """
    best = np.argsort(scores, kind="stable")[:count]
    if np.isinf(scores[best]).any():
        return []
    positions: list[int] = best.tolist()
    return positions
