"""A partitioner that divides each class among the clients in random fractions from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.by_class import ByClass
from fedraa.data.partition.counts import apportion_classes
from fedraa.messages import Index
from fedraa.numbers import Positive

DRAWS = 100


@dataclass(frozen=True)
class Dirichlet(ByClass):
    """A partition that divides each class among the clients in random fractions from Dir(alpha · 1).

    It comes from Yurochkin et al. 2019. NIID-Bench also uses it (Li et al. 2022). The partition `hsu`, in contrast,
    draws fractions of the classes for each client. If a client has no sample, all fractions are drawn again, at most
    `DRAWS` times.

    Attributes:
        alpha: The concentration. With a small alpha, each client has few classes. With a large alpha, all clients have
            about the same number of samples of each class.
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
