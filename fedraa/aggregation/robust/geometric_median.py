"""RFA: the geometric median, by the smoothed Weiszfeld algorithm (Pillutla et al. 2019, Algorithm 2).

    z = weighted mean of delta_i                               # weights a_i of the clients
    repeat `iterations` times:
        b_i = a_i / max(smoothing, ||z - delta_i||)
        z = sum of b_i delta_i / sum of b_i
Submodels: the norm is taken over the client's coordinates S_i and multiplied by sqrt(d / |S_i|). For a coordinate, the
sums run over the clients that trained it.

The method sets the weights a_i. In rounds, a_i is the number of samples or 1. In a buffer, it is the staleness weight.
Attackers may have up to half of the weight. With unequal data, the geometric median keeps more of each client's delta
than the coordinate-wise median. The rule does not need to know the number of attackers.

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
    """Geometric median of the deltas (RFA, Pillutla et al. 2019).

    Attributes:
        iterations: Number of steps of the smoothed Weiszfeld algorithm.
        smoothing: Smallest distance by which a step divides.
    """

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
