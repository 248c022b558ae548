"""A partitioner that shuffles the samples and divides them equally."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.data.partition.partitioner import Partition, Partitioner, Shards
from fedraa.messages import Index


@dataclass(frozen=True)
class Iid(Partitioner):
    """A random partition. All clients have equal numbers (±1) of training samples and of test samples."""

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        shards = _equal_runs(len(labels), clients, rng)
        return np.split(shards.order, shards.offsets[1:-1])

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        return Partition(_equal_runs(len(train), clients, rng), _equal_runs(len(test), clients, rng))


def _equal_runs(samples: int, clients: int, rng: np.random.Generator) -> Shards:
    return Shards(rng.permutation(samples), np.arange(clients + 1, dtype=np.int64) * samples // clients)
