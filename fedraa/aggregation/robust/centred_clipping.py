"""Centred clipping: clip each delta around the last aggregate (Karimireddy, He, Jaggi 2021, Algorithm 2).

v = 0 at the start of the run
In each round or buffer:
    repeat `iterations` times:
        v <- v + mean over i of (delta_i - v) * min(1, r_i / ||delta_i - v||)
    theta <- theta + server_lr * v

Submodels: the norm of client i is taken over its coordinates S_i, and r_i = radius * sqrt(|S_i| / d). Each coordinate
of v changes by the mean over the clients that trained it. Personal layers do not count in d.

The mean is taken over the clients of the round or the buffer. The mean over all clients would shorten the steps of a
buffer. The radius should be about the norm of an honest delta minus v. The paper uses 10 without momentum, and 100 with
momentum 0.9.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.norm_bound import clip_factors
from fedraa.aggregation.robust.rows import (
    Numbers,
    RobustAggregator,
    Votes,
    combine_chunks,
    measure_rows,
    weighted_mean,
)
from fedraa.numbers import Count, Positive


@AGGREGATOR.register("centred-clipping")
@dataclass
class CentredClipping(RobustAggregator):
    """Mean of the deltas after each delta is clipped to a radius around the last aggregate (Karimireddy et al. 2021).

    Attributes:
        radius: The largest distance between a clipped delta and the last aggregate v.
        iterations: Number of steps of v in a round or a buffer.
    """

    radius: Positive = 10.0
    iterations: Count = 1

    weighs: ClassVar[bool] = False
    keeps: ClassVar[str] = "last aggregate [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_centre",)

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._centre = np.zeros(size, np.float64)

    def combine(self, votes: Votes) -> Numbers:
        for _ in range(self.iterations):
            norms, shares = measure_rows(votes.rows, self._centre, self.sent)
            factors = clip_factors(norms, shares, self.radius)
            # The mean of s_i (delta_i - v) equals (mean of s_i delta_i) - v * (mean of s_i). The code computes the
            # second form, because it needs no copies of the rows.
            pulled = weighted_mean(votes.rows, np.ones(len(factors)), factors)
            kept = combine_chunks(votes.rows, partial(_mean_factor, factors=factors))
            covered = ~np.isnan(pulled)
            self._centre[covered] += pulled[covered] - kept[covered] * self._centre[covered]
        return np.where(covered, self._centre, np.nan)

    def memory(self, size: int, clients: int) -> int:
        return super().memory(size, clients) + 24 * size


def _mean_factor(block: Numbers, factors: Numbers) -> Numbers:
    """Return the mean factor of each column of a chunk [n, k].

    Row i has the factor `factors[i]`. The mean is over the rows that are not NaN in the column.
    """
    covered = ~np.isnan(block)
    total = (covered * factors[:, None]).sum(axis=0)
    return np.asarray(total / np.maximum(1, covered.sum(axis=0)))
