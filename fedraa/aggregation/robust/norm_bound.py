"""Norm bounding: shorten long deltas before the mean (Sun et al. 2019).

    delta = weighted mean of delta_i * min(1, M_i / ||delta_i||)
Submodels: the norm of client i is taken over its coordinates S_i, and M_i = max_norm * sqrt(|S_i| / d). Personal layers
do not count in d.

The method sets the weights of the mean. Norm bounding limits large deltas, such as the scaled deltas of a backdoor. It
does not stop many small wrong deltas. `max_norm` should be about the norm of honest deltas. The paper uses 1.5 to 5.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import Numbers, RobustAggregator, Votes, measure_rows, weighted_mean
from fedraa.numbers import Positive


@AGGREGATOR.register("norm-bound")
@dataclass
class NormBound(RobustAggregator):
    """Weighted mean of the deltas, after longer deltas are shortened to the norm `max_norm` (Sun et al. 2019)."""

    max_norm: Positive = 3.0

    def combine(self, votes: Votes) -> Numbers:
        norms, shares = measure_rows(votes.rows, sent=self.sent)
        return weighted_mean(votes.rows, votes.weights, clip_factors(norms, shares, self.max_norm))


def clip_factors(norms: Numbers, shares: Numbers, bound: float) -> Numbers:
    """Return the factors [n] that shorten vectors to a bound: min(1, bound * sqrt(share) / norm).

    The factor for the norm 0 is 1.

    Args:
        norms: Norms of the vectors [n].
        shares: Fraction of all coordinates that each vector has [n].
        bound: Largest norm of a vector with all coordinates.
    """
    limits = bound * np.sqrt(shares)
    return np.divide(limits, norms, out=np.ones_like(norms), where=norms > limits)
