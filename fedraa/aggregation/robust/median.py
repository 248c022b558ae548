"""Coordinate-wise median (Yin et al. 2018, Algorithm 1, option I).

    delta_c = median of {delta_ic : client i trained coordinate c}     # even number: mean of the two middle values
    if fewer than `min_coverage` clients trained c: theta_c keeps its value

Use it against few attackers when the clients' data are alike. Sample counts and staleness weights do not enter.

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
    """Median per coordinate over the clients that trained it (Yin et al. 2018).

    A coordinate that fewer than `min_coverage` clients trained keeps its value. With 1 it moves without protection.
    """

    min_coverage: Count = MIN_MAJORITY

    weighs: ClassVar[bool] = False

    @property
    def min_clients(self) -> int:
        return self.min_coverage

    def combine(self, votes: Votes) -> Numbers:
        return median_of_rows(votes.rows, self.min_coverage)
