"""Coordinate-wise median (Yin et al. 2018, Algorithm 1, option I).

    delta_c = median of {delta_ic : client i trained coordinate c}     # even number: mean of the two middle values
    if fewer than `min_coverage` clients trained c: theta_c keeps its value

Use the median against few attackers if the data of clients are similar. It ignores numbers of samples and staleness
weights.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import MIN_MAJORITY, Numbers, RobustAggregator, Votes, median_of_rows
from fedraa.numbers import Count


@AGGREGATOR.register("median")
@dataclass
class CoordinateMedian(RobustAggregator):
    """Median of each coordinate over the clients that trained it (Yin et al. 2018).

    Attributes:
        min_coverage: If fewer clients than this number trained a coordinate, the coordinate keeps its value. With a
            number below 3, one attacker can decide a coordinate.
    """

    min_coverage: Count = MIN_MAJORITY

    weighs: ClassVar[bool] = False

    @property
    def min_clients(self) -> int:
        return self.min_coverage

    def count_tolerated(self, clients: int) -> int:
        return (clients - 1) // 2

    def combine(self, votes: Votes) -> Numbers:
        return median_of_rows(votes.rows, self.min_coverage)
