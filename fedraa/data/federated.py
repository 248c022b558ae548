"""The data set as the clients hold it: each client's training samples are one run of rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.dataset import Dataset
from fedraa.data.partition.partitioner import Index, Partition
from fedraa.data.tree import Tree, take


@dataclass(frozen=True, eq=False)
class Federated:
    """A data set dealt to clients.

    Client n trains on rows `offsets[n]:offsets[n + 1]` of `x_train`: a slice without a copy, also where the
    array is in shared memory. Its test samples are rows `test_order[test_offsets[n]:test_offsets[n + 1]]`
    of `dataset.x_test`. `dataset` is the original with its training rows in this order.
    """

    dataset: Dataset
    offsets: Index
    test_order: Index
    test_offsets: Index

    @property
    def x_train(self) -> Tree:
        return self.dataset.x_train

    @property
    def y_train(self) -> Any:
        return self.dataset.y_train

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Training samples per client, int64 `[clients]`."""
        return np.diff(self.offsets)

    def client(self, client: int) -> tuple[Tree, npt.NDArray[Any]]:
        """The training samples of one client, as views."""
        rows = slice(self.offsets[client], self.offsets[client + 1])
        return take(self.x_train, rows), self.y_train[rows]


def federate(dataset: Dataset, partition: Partition) -> Federated:
    """Copy the training rows into the order of the shards of `partition`."""
    order, offsets = partition.train
    ordered = replace(dataset, x_train=take(dataset.x_train, order), y_train=dataset.y_train[order])
    return Federated(ordered, offsets, partition.test.order, partition.test.offsets)
