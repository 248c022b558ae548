"""The partitioner that gives groups of clients the same class mixture: a mixture of Dirichlet distributions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.equal_shards import draw_equal_shards
from fedraa.data.partition.partitioner import Index, Partitioner
from fedraa.numbers import Count, Positive


@dataclass(frozen=True)
class Mixture(Partitioner):
    """A partition into equal shards with class mixtures from a few prototypes, as if clients came in clusters.

    There are M = `prototypes` class mixtures q_m ~ Dir(alpha · p), where p has the share of each class in the training
    samples. Without `gamma` every client has one of them, drawn so that all prototypes have the same number (±1) of
    clients. With `gamma` client i has the mixture sum_m w_im · q_m with w_i ~ Dir(gamma · 1): a large gamma makes the
    clients alike. Every client gets floor(samples / clients) samples.
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
