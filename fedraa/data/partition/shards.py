"""A partitioner that sorts samples by label and gives each client a few random shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.partitioner import Partitioner
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.numbers import Count


@dataclass(frozen=True)
class SortedShards(Partitioner):
    """A partition of samples that are sorted by label and cut into equal shards (McMahan et al. 2017).

    Attributes:
        per_client: The number of random shards that each client gets. There are clients * per_client shards.
    """

    needs_classes: ClassVar[bool] = True
    per_client: Count = 2

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        runs = clients * self.per_client
        if runs > len(labels):
            problem = f"{len(labels)} samples are too few for {runs} shards"
            raise InputError("partition", problem, hint="use fewer clients, or fewer shards per client")
        order = rng.permutation(len(labels))
        pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], runs)
        dealt = rng.permutation(runs).reshape(clients, self.per_client)
        return [np.concatenate([pieces[run] for run in mine]) for mine in dealt]
