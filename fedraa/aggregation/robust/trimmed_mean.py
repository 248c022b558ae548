"""Coordinate-wise trimmed mean (Yin et al. 2018, Algorithm 1, option II).

    n_c = number of clients that trained coordinate c;   b = floor(trim * n_c)
    delta_c = mean of the clients' values of c without the b smallest and the b largest
    if n_c < min_coverage: theta_c keeps its value    # by default, min_coverage is the smallest n_c with b >= 1, or 3

`trim` must be at least the fraction of attackers. The trimmed mean ignores numbers of samples and staleness weights.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import MIN_MAJORITY, Numbers, RobustAggregator, Votes, combine_chunks, count_rows
from fedraa.messages import Index
from fedraa.numbers import Count, round_down, round_up


@AGGREGATOR.register("trimmed-mean")
@dataclass
class TrimmedMean(RobustAggregator):
    """Mean per coordinate without the smallest and the largest values (Yin et al. 2018).

    Attributes:
        trim: The fraction of the values that is removed at each end.
        min_coverage: A coordinate that fewer clients trained keeps its value. None means the smallest number of clients
            with which at least one value is removed at each end.
    """

    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    min_coverage: Count | None = None

    weighs: ClassVar[bool] = False

    @property
    def min_clients(self) -> int:
        if self.min_coverage is not None:
            return self.min_coverage
        return max(MIN_MAJORITY, round_up(1 / self.trim))

    def count_tolerated(self, clients: int) -> int:
        return round_down(self.trim * clients)

    def combine(self, votes: Votes) -> Numbers:
        tolerated = np.array([self.count_tolerated(clients) for clients in range(len(votes.rows) + 1)])
        return combine_chunks(votes.rows, lambda block: self._trim_chunk(block, tolerated))

    def _trim_chunk(self, block: Numbers, tolerated: Index) -> Numbers:
        """Return the trimmed mean [k] of a chunk [n, k]. `tolerated` [n + 1] is `count_tolerated` for 0 to n rows."""
        counts = count_rows(block)
        removed = tolerated[counts]
        ranks = np.arange(len(block))[:, None]
        kept = (ranks >= removed) & (ranks < counts - removed)
        total = np.where(kept, np.sort(block, axis=0), 0.0).sum(axis=0)
        protected = (counts >= self.min_clients) & (counts > 0)
        return np.asarray(np.divide(total, counts - 2 * removed, out=np.full(len(total), np.nan), where=protected))
