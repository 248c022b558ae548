"""RFA: the geometric median, by the smoothed Weiszfeld algorithm (Pillutla et al. 2019, Algorithm 2).

    z = weighted mean of delta_i                               # weights a_i of the clients
    repeat `iterations` times:
        b_i = a_i / max(smoothing, ||z - delta_i||)
        z = sum of b_i delta_i / sum of b_i
Submodels: the norm runs over the client's coordinates S_i, times sqrt(d / |S_i|); sums run over the clients with c.

The weights are those of the method: samples or 1 in rounds, the staleness weight in a buffer. Up to half of the weight
may be of attackers. It keeps more of unequal data than the median, and needs no number of attackers.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import Numbers, RobustAggregator, Votes, measure_rows, weighted_mean
from fedraa.numbers import Count, Positive


@AGGREGATOR.register("geometric-median")
@dataclass
class GeometricMedian(RobustAggregator):
    """Geometric median of the deltas (RFA, Pillutla et al. 2019), by `iterations` steps of smoothed Weiszfeld."""

    iterations: Count = 3
    smoothing: Positive = 1e-6

    @property
    def min_clients(self) -> int:
        return 3

    def count_tolerated(self, clients: int) -> int:
        return (clients - 1) // 2

    def combine(self, votes: Votes) -> Numbers:
        centre = weighted_mean(votes.rows, votes.weights)
        for _ in range(self.iterations):
            norms, shares = measure_rows(votes.rows, centre)
            distances = norms / np.sqrt(np.maximum(shares, np.finfo(float).tiny))
            centre = weighted_mean(votes.rows, votes.weights / np.maximum(self.smoothing, distances))
        return centre
