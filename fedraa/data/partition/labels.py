"""A partitioner that gives each client samples of only a few classes."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.data.partition.by_class import ByClass
from fedraa.data.partition.counts import Shares, apportion_classes
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.numbers import Count


@dataclass(frozen=True)
class Labels(ByClass):
    """A partition in which each client has a fixed number of classes, as in HeteroFL and FedRolex.

    Every class belongs to the same number of clients (±1), and its samples are divided evenly among them.

    Attributes:
        per_client: The number of different classes of each client.
    """

    name: ClassVar[str] = "labels"
    remedy: ClassVar[str] = "more labels per client, as in labels(per_client=5)"
    per_client: Count = 2

    def counts(self, totals: Index, clients: int, rng: np.random.Generator) -> Index:
        return apportion_classes(self._draw_shares(len(totals), clients, rng), totals, rng)

    def _draw_shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """Return the fraction of each class that each client gets, [classes, clients].

        Clients form blocks. A block is just large enough that all classes occur equally often in it. Each block
        arranges the classes in a random circle. One client after another takes the next `per_client` classes of the
        circle, so no client gets a class twice. Raises InputError if `per_client` exceeds the number of classes, or is
        too small to cover all classes.
        """
        labels = self.per_client
        if not 1 <= labels <= classes:
            raise InputError("partition.per_client", got=labels, expected=f"1 to {classes}, the number of classes")
        if clients * labels < classes:
            fewest = math.ceil(classes / clients)
            expected = f"{fewest} or more, so that {clients} clients hold all {classes} classes"
            raise InputError("partition.per_client", got=labels, expected=expected)
        block = classes // math.gcd(classes, labels)
        client = np.arange(clients)
        circles = rng.permuted(np.tile(np.arange(classes), (math.ceil(clients / block), 1)), axis=1)
        handles = (client[:, None] % block * labels + np.arange(labels)) % classes
        held = circles[(client // block)[:, None], handles]
        holds = np.zeros((classes, clients))
        holds[held.T, client] = 1.0
        shares: Shares = holds / holds.sum(axis=1, keepdims=True)
        return shares
