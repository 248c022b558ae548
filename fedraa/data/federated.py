"""A data set in client order. A client's training samples are consecutive rows, or are read when the client trains."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.dataset import Dataset
from fedraa.data.partition.partitioner import Index, Partition
from fedraa.data.scaling import Scaling
from fedraa.data.sources.clients import Shard, Source
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Array, Tree, take_rows


@dataclass(frozen=True, eq=False, repr=False)
class Federated:
    """A data set dealt to clients.

    Client n trains on rows `offsets[n]:offsets[n + 1]` of `x_train`. This is a slice without a copy, even if the
    array is in shared memory. The test samples of client n are rows `test_order[test_offsets[n]:test_offsets[n + 1]]`
    of `dataset.x_test`. `dataset` is the original data set with its training rows in client order.

    If there is a `source`, clients read their samples from it, and `dataset` has only a few training samples, drawn at
    random. `labels` are the labels of all training samples in client order, or None if they are unknown. `names` are
    the names of the clients in the data, if the data have any.

    `order` holds the row of each training sample in the original data, in client order. It is None if a function makes
    the samples. If the test samples are training samples that were held back, `held_back` holds their original rows.

    All samples have been scaled by `scaling` and then changed by the fitted transforms `fixed`.
    """

    dataset: Dataset
    offsets: Index
    test_order: Index
    test_offsets: Index
    source: Source | None = None
    labels: Array | None = None
    names: tuple[str, ...] | None = None
    order: Index | None = None
    held_back: Index | None = None
    scaling: Scaling = None
    fixed: Transforms = field(default_factory=Transforms)

    def __repr__(self) -> str:
        """Return the name and the numbers of clients and samples, but no values."""
        counts = f"{int(self.sizes.sum())} + {len(self.dataset.y_test)} samples"
        return f"Federated {self.dataset.name!r} of {len(self.sizes)} clients with {counts}"

    @property
    def x_train(self) -> Tree:
        return self.dataset.x_train

    @property
    def y_train(self) -> Any:
        return self.dataset.y_train

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of training samples of each client, int64 `[clients]`."""
        return np.diff(self.offsets)

    def client(self, client: int) -> tuple[Tree, Any]:
        """Return the training samples of one client: views, or copies read from the source."""
        if self.source is not None:
            return self.source.client(client)
        rows = slice(self.offsets[client], self.offsets[client + 1])
        return take_rows(self.x_train, rows), self.y_train[rows]

    def shard(self, client: int, turn: int) -> Shard:
        """Return the samples of a client's `turn`-th task: views, or copies read from the source."""
        if self.source is not None:
            return self.source.shard(client, turn)
        return *self.client(client), None

    def test_of(self, client: int) -> tuple[Tree, Any]:
        """Return the test samples of one client, which may be empty."""
        rows = self.test_order[self.test_offsets[client] : self.test_offsets[client + 1]]
        return take_rows(self.dataset.x_test, rows), self.dataset.y_test.take(rows, axis=0)


def federate_dataset(dataset: Dataset, partition: Partition) -> Federated:
    """Return the data set with its training rows copied into the client order of `partition`."""
    order, offsets = partition.train
    labels = dataset.y_train.take(order, axis=0)
    ordered = replace(dataset, x_train=take_rows(dataset.x_train, order), y_train=labels)
    return Federated(ordered, offsets, partition.test.order, partition.test.offsets, labels=labels, order=order)
