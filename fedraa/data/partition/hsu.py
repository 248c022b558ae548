"""The partitioner of Hsu et al. 2019. All clients have the same number of samples, in random class proportions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.equal_shards import draw_equal_shards
from fedraa.data.partition.partitioner import Partitioner
from fedraa.messages import Index
from fedraa.numbers import Positive


@dataclass(frozen=True)
class Hsu(Partitioner):
    """A partition in which client i has the class mixture q_i ~ Dir(alpha · p) (Hsu, Qi, Brown 2019).

    q_i is the probability of each class, and p is the fraction of each class in the training samples. Every client
    gets floor(samples / clients) samples.

    With L equally frequent classes, the expected sum of squares of q_i is (1 + alpha / L) / (1 + alpha). With
    `per_class`, it is only (1 + alpha) / (1 + alpha · L), so the skew is weaker.

    Attributes:
        alpha: The concentration. A smaller alpha gives a stronger skew.
        per_class: True for q_i ~ Dir(alpha · 1), as in FedDyn and Flower.
    """

    needs_classes: ClassVar[bool] = True
    alpha: Positive = 0.5
    per_class: bool = False

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        concentration = self.alpha * counts / counts.sum()
        if self.per_class:
            concentration = np.full(len(counts), self.alpha)
        return draw_equal_shards(classes, rng.dirichlet(concentration, clients), rng)
