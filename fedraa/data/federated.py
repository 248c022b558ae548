"""A data set that is divided among clients."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.dataset import Dataset
from fedraa.data.partition.partitioner import Partition
from fedraa.data.scaling import Scaling
from fedraa.data.sources.clients import Shard, Source
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Array, Tree, take_rows
from fedraa.messages import Index


@dataclass(frozen=True, eq=False, repr=False)
class Federated:
    """A data set that is divided among clients.

    "Client order" means that the samples of client 0 come first, then the samples of client 1, and so on. Without a
    `source`, client n trains on the samples `x_train[offsets[n]:offsets[n + 1]]`.

    Attributes:
        dataset: The data set with its training samples in client order. With a `source` it has only a few random
            training samples.
        offsets: The index of each client's first training sample in client order, and the number of all samples
            [clients + 1].
        test_order: The rows of `dataset.x_test`, in client order.
        test_offsets: The test samples of client n are the rows `test_order[test_offsets[n]:test_offsets[n + 1]]`.
        source: The source from which clients read their training samples. None if `dataset` contains them.
        labels: The labels of all training samples in client order. None if they are unknown.
        names: The names of the clients in the data. None if they have no names.
        order: The row of each training sample in the original data, in client order. None if a function generates the
            samples.
        held_back: The rows of the validation samples in the original data. None if there are none.
        scaling: The scaling of the inputs, which was applied to all samples.
        fixed: The transforms that were applied to all samples after the scaling.
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
        """Return the name and the sizes, without values."""
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
        """Return the training inputs and targets of one client."""
        if self.source is not None:
            return self.source.client(client)
        rows = slice(self.offsets[client], self.offsets[client + 1])
        return take_rows(self.x_train, rows), self.y_train[rows]

    def shard(self, client: int, turn: int) -> Shard:
        """Return the samples for a client's task number `turn` (from 0)."""
        if self.source is not None:
            return self.source.shard(client, turn)
        return *self.client(client), None

    def test_of(self, client: int) -> tuple[Tree, Any]:
        """Return the test inputs and targets of one client, which may be empty."""
        rows = self.test_order[self.test_offsets[client] : self.test_offsets[client + 1]]
        return take_rows(self.dataset.x_test, rows), self.dataset.y_test.take(rows, axis=0)


def federate_dataset(dataset: Dataset, partition: Partition) -> Federated:
    """Divide a data set by a partition. The result has a copy of the training samples in client order."""
    order, offsets = partition.train
    labels = dataset.y_train.take(order, axis=0)
    ordered = replace(dataset, x_train=take_rows(dataset.x_train, order), y_train=labels)
    return Federated(ordered, offsets, partition.test.order, partition.test.offsets, labels=labels, order=order)
