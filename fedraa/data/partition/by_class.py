"""Partitioners that say how many samples of each class a client gets; which ones is chance."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedraa.data.partition.counts import apportion, shuffled
from fedraa.data.partition.partitioner import Index, Partition, Partitioner, Shards


class ByClass(Partitioner):
    """One matrix of counts, class by client, for the training labels; its shares are applied to the test labels."""

    needs_classes: ClassVar[bool] = True
    name: ClassVar[str]
    remedy: ClassVar[str]
    """What to change, besides fewer clients, when a client is left without a sample."""

    @abstractmethod
    def counts(self, totals: Index, clients: int, rng: np.random.Generator) -> Index:
        """Samples `[classes, clients]` of each class for each client, where there are `totals` of the classes."""

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        shards = ByClass.deal(self, labels, labels[:0], clients, rng).train  # whatever a subclass assigns
        return np.split(shards.order, shards.offsets[1:-1])

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        classes, train = np.unique(train, return_inverse=True)
        test = np.searchsorted(classes, test)
        totals = np.bincount(train, minlength=len(classes))
        counts = self.counts(totals, clients, rng)
        empty = np.flatnonzero(counts.sum(axis=0) == 0)
        if empty.size:
            raise ValueError(
                f"client {empty[0]} has no training sample in the {self.name} split; use fewer clients or {self.remedy}"
            )
        test_counts = apportion(counts / totals[:, None], np.bincount(test, minlength=len(classes)), rng)
        return Partition(Shards(*shuffled(train, counts, rng)), Shards(*shuffled(test, test_counts, rng)))
