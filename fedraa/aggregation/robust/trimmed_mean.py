"""Coordinate-wise trimmed mean (Yin et al. 2018, Algorithm 1, option II).

    n_c = number of clients that trained coordinate c;   b = floor(trim * n_c)
    delta_c = mean of the sorted values of c without the b smallest and the b largest
    if b = 0 or n_c < min_coverage: theta_c keeps its value

`trim` must be at least the share of attackers. Sample counts and staleness weights do not enter.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import MIN_MAJORITY, Numbers, RobustAggregator, Votes, combine_chunks, count_rows
from fedraa.numbers import Count

# This summand prevents that 0.29 * 100 = 28.999999999999996 becomes 28.
ROUNDING = 1e-9


@AGGREGATOR.register("trimmed-mean")
@dataclass
class TrimmedMean(RobustAggregator):
    """Mean per coordinate without the smallest and the largest values (Yin et al. 2018).

    `trim` is the share of the values that is removed at each end. A coordinate from which no value would be removed
    keeps its value, unless `min_coverage` is set. Then a coordinate moves if at least `min_coverage` clients trained
    it.
    """

    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    min_coverage: Count | None = None

    weighs: ClassVar[bool] = False

    @property
    def min_clients(self) -> int:
        if self.min_coverage is not None:
            return self.min_coverage
        return max(MIN_MAJORITY, math.ceil(1 / self.trim - ROUNDING))

    def combine(self, votes: Votes) -> Numbers:
        return combine_chunks(votes.rows, self._trim_chunk)

    def _trim_chunk(self, block: Numbers) -> Numbers:
        """Return the trimmed mean [k] of a chunk [n, k]."""
        counts = count_rows(block)
        removed = np.floor(self.trim * counts + ROUNDING).astype(np.int64)
        ranks = np.arange(len(block))[:, None]
        kept = (ranks >= removed) & (ranks < counts - removed)
        total = np.where(kept, np.sort(block, axis=0), 0.0).sum(axis=0)
        protected = (counts >= self.min_clients) & (counts > 0)
        return np.asarray(np.divide(total, counts - 2 * removed, out=np.full(len(total), np.nan), where=protected))
