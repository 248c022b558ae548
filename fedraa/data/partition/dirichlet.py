"""The partitioner that divides each class among the clients in shares drawn from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.by_class import ByClass
from fedraa.data.partition.counts import apportion_classes
from fedraa.data.partition.partitioner import Index
from fedraa.numbers import Positive

DRAWS = 100


@dataclass(frozen=True)
class Dirichlet(ByClass):
    """A partition with the shares of each class drawn from Dir(alpha · 1).

    This is the partition of Yurochkin et al. 2019, as in NIID-Bench (Li et al. 2022). The partition of Hsu et al. 2019
    differs: it draws a mixture of classes for each client, and does not use every sample exactly once. If a client has
    no sample, the whole matrix is drawn again, at most `DRAWS` times in all.
    """

    name: ClassVar[str] = "dirichlet"
    remedy: ClassVar[str] = "a larger dirichlet"
    alpha: Positive = 0.5

    def counts(self, totals: Index, clients: int, rng: np.random.Generator) -> Index:
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=len(totals))
            counts = apportion_classes(shares, totals, rng)
            if counts.sum(axis=0).all():
                break
        return counts
