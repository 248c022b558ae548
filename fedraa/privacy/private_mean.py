"""The aggregator of rounds with differential privacy. It clips deltas and adds noise."""

from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.messages import Mask, Vector
from fedraa.privacy.noisy_sum import NoisySum


class PrivateMean(Aggregator):
    """The mean of DP-FedAvg (McMahan et al. 2018). Every client has the weight 1.

    Args:
        noisy_sum: Clips the deltas and draws the noise.
        fixed: True to divide by the expected number of clients. False to divide each coordinate by the number of
            clients that trained it.
    """

    needs_reports: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("_noisy_sum", "_total")

    def __init__(self, noisy_sum: NoisySum, *, fixed: bool) -> None:
        self._noisy_sum = noisy_sum
        self._fixed = fixed

    def start(self, size: int, clients: int) -> None:
        self._total = np.zeros(size)

    def add(self, contribution: ClientDelta) -> None:
        fragment = contribution.fragment or 0
        where = contribution.where
        self._total[where] += self._noisy_sum.clip(contribution.delta, where, fragment)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        noise, covered = self._noisy_sum.release()
        self._total += noise
        if self._fixed:
            self._total /= self._noisy_sum.cohort
        else:
            self._total /= np.maximum(totals.coverage, 1)
        mean = np.where(covered, self._total, 0.0).astype(np.float32)
        self._total.fill(0.0)
        return mean, covered
