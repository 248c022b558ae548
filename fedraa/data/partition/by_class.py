"""The base class of partitioners that set how many samples of each class a client gets."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedraa.data.partition.counts import apportion_classes, draw_by_counts
from fedraa.data.partition.partitioner import Partition, Partitioner, Shards
from fedraa.errors import InputError
from fedraa.messages import Index


class ByClass(Partitioner):
    """A partitioner that sets the number of training samples of each class for each client.

    The samples of a class are drawn at random. Test samples are divided in the same proportions.
    """

    needs_classes: ClassVar[bool] = True
    name: ClassVar[str]
    remedy: ClassVar[str]
    """The hint of the error about a client without a sample, such as `a larger dirichlet`."""

    @abstractmethod
    def counts(self, totals: Index, clients: int, rng: np.random.Generator) -> Index:
        """Return the number of samples of each class for each client, `[classes, clients]`.

        Args:
            totals: The number of training samples of each class, `[classes]`.
            clients: The number of clients.
            rng: The source of random numbers.
        """

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        # `self.deal` may call `assign`, and this recursion would never end.
        shards = ByClass.deal(self, labels, labels[:0], clients, rng).train
        return np.split(shards.order, shards.offsets[1:-1])

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        classes, train = np.unique(train, return_inverse=True)
        test = np.searchsorted(classes, test)
        totals = np.bincount(train, minlength=len(classes))
        counts = self.counts(totals, clients, rng)
        empty = np.flatnonzero(counts.sum(axis=0) == 0)
        if empty.size:
            problem = f"client {empty[0]} has no training sample in the partition {self.name}"
            raise InputError("partition", problem, hint=f"use fewer clients or {self.remedy}")
        test_counts = apportion_classes(counts / totals[:, None], np.bincount(test, minlength=len(classes)), rng)
        return Partition(Shards(*draw_by_counts(train, counts, rng)), Shards(*draw_by_counts(test, test_counts, rng)))
