"""Bulyan: select deltas by repeated Krum, then take their trimmed mean (El Mhamdi et al. 2018).

n clients, at most f attackers, n >= 4f + 3:
    repeat n - 2f times: among the remaining clients, select and remove the one with the smallest Krum score
    for each coordinate c: delta_c = mean of the n - 4f selected values closest to the median of the selected values
    submodels: n_c selected clients trained c; delta_c is the mean of the n_c - 2f closest values
               if n_c <= 2f, theta_c keeps its value

With r remaining clients, Krum's score counts r - f - 2 neighbours. If this number is below 1, the score counts one
neighbour. With no neighbour, all scores would be 0. The client with the lowest number would then be selected, even if
it is an attacker.

Use Bulyan instead of Multi-Krum against attacks that change few coordinates by a large amount. Bulyan needs many
clients.

Read next: aggregation/robust/krum.py (scores and distances), aggregation/robust/rows.py (the rows of the clients).
"""

from dataclasses import dataclass

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.krum import DistanceRule, score_rows, select_best
from fedraa.aggregation.robust.rows import Numbers, Rows, combine_chunks, count_rows, middle_of_sorted


@AGGREGATOR.register("bulyan")
@dataclass
class Bulyan(DistanceRule):
    """Repeated Krum, then a trimmed mean around the median (El Mhamdi et al. 2018).

    Attributes:
        attackers: The number of attackers that the rule withstands, f.
    """

    @property
    def min_clients(self) -> int:
        return 4 * self.attackers + 3

    def select(self, squared: Numbers) -> list[int]:
        left = list(range(len(squared)))
        selected: list[int] = []
        for _ in range(len(squared) - 2 * self.attackers):
            scores = score_rows(squared[np.ix_(left, left)], self.attackers, at_least=1)
            best = select_best(scores, 1)
            if not best:
                return []
            selected.append(left.pop(best[0]))
        return selected

    def join_rows(self, rows: Rows) -> Numbers:
        return combine_chunks(rows, self._join_chunk)

    def _join_chunk(self, block: Numbers) -> Numbers:
        """Return, for each coordinate of a chunk [n, k], the mean [k] of the values closest to the median.

        If n_c clients trained the coordinate, the mean is over n_c - 2f values. It is NaN if n_c <= 2f.
        """
        counts = count_rows(block)
        kept = counts - 2 * self.attackers
        distances = np.abs(block - middle_of_sorted(np.sort(block, axis=0), counts))
        # `argsort` puts missing values (NaN) last.
        nearest = np.take_along_axis(block, np.argsort(distances, axis=0, kind="stable"), axis=0)
        total = np.where(np.arange(len(block))[:, None] < kept, nearest, 0.0).sum(axis=0)
        return np.asarray(np.divide(total, kept, out=np.full(len(total), np.nan), where=kept > 0))
