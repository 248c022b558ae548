"""A partitioner that gives groups of clients the same class mixture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.equal_shards import draw_equal_shards
from fedraa.data.partition.partitioner import Index, Partitioner
from fedraa.numbers import Count, Positive


@dataclass(frozen=True)
class Mixture(Partitioner):
    """A partition in which clients form clusters with equal class mixtures.

    Every cluster m has a class mixture q_m ~ Dir(alpha · p), where p has the share of each class in the training
    samples. Each client belongs to one random cluster, and all clusters have the same number (±1) of clients. Every
    client gets floor(samples / clients) samples.

    Attributes:
        alpha: The concentration. A smaller alpha makes the clusters more different.
        prototypes: The number of clusters.
        gamma: If it is set, client i does not belong to one cluster. Its mixture is sum_m w_im · q_m, with
            w_i ~ Dir(gamma · 1). A large gamma makes the clients similar.
    """

    needs_classes: ClassVar[bool] = True
    alpha: Positive = 0.5
    prototypes: Count = 3
    gamma: Positive | None = None

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        prototypes = rng.dirichlet(self.alpha * counts / counts.sum(), self.prototypes)
        if self.gamma is None:
            mixtures = prototypes[rng.permutation(clients) % self.prototypes]
        else:
            mixtures = rng.dirichlet(np.full(self.prototypes, self.gamma), clients) @ prototypes
        return draw_equal_shards(classes, mixtures, rng)
