"""A partitioner with clusters of clients. All clients of a cluster have the same class proportions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.equal_shards import draw_equal_shards
from fedraa.data.partition.partitioner import Partitioner
from fedraa.messages import Index
from fedraa.numbers import Count, Positive


@dataclass(frozen=True)
class Mixture(Partitioner):
    """A partition in which all clients of a cluster have the same class proportions.

    Cluster m has the proportions q_m ~ Dir(alpha · p). p is the fraction of each class in the training samples. Clients
    are divided at random into clusters of equal size (±1). Every client gets floor(samples / clients) samples.

    Attributes:
        alpha: The concentration. A smaller alpha makes the clusters more different.
        prototypes: The number of clusters.
        gamma: If set, client i belongs to no cluster. It has the proportions sum_m w_im · q_m, with
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
