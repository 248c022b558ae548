"""A partitioner for data with a client id in each row, such as the writer of a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.partitioner import Partition, Partitioner, Shards, match_test_shards
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.numbers import format_count

# float64 represents every integer up to this one.
MAX_EXACT_INTEGER = 2**53


@dataclass(frozen=True)
class Natural(Partitioner):
    """A partition by the client ids in the data.

    Clients are numbered in the sorted order of their ids. A run with fewer clients draws ids at random. The rows of all
    other ids are omitted.
    """

    owners: Any = field(default=None, init=False, repr=False, compare=False)
    test_owners: Any = field(default=None, init=False, repr=False, compare=False)

    def bound(self, owners: Any, test_owners: Any) -> "Natural":
        # NumPy compares a number with a text as unequal, so no test row would belong to a client.
        if owners is not None and test_owners is not None and _have_words(owners) != _have_words(test_owners):
            client, other = (np.asarray(ids).tolist()[0] for ids in (owners, test_owners))
            expected = f"a client such as {client!r}, because all clients are words or all are numbers"
            raise InputError("test_clients", got=other, expected=expected)
        partitioner = Natural()
        for name, values in (("owners", owners), ("test_owners", test_owners)):
            if values is not None:
                object.__setattr__(partitioner, name, _as_ids(values))
        return partitioner

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        shards = self._training_shards(clients, rng)[0]
        return np.split(shards.order, shards.offsets[1:-1])

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        shards, ids = self._training_shards(clients, rng)
        if self.test_owners is None:
            test_shards = match_test_shards(train[shards.order], shards.offsets, test, rng)
        else:
            test_shards = _shards_of_owners(ids, self.test_owners)
        return Partition(shards, test_shards, tuple(map(str, ids.tolist())))

    def _training_shards(self, clients: int, rng: np.random.Generator) -> tuple[Shards, npt.NDArray[Any]]:
        if self.owners is None:
            problem = "natural needs data with a client for each row, but these data have none"
            hint = "name a column as client, or choose another partition, such as iid or dirichlet"
            raise InputError("partition", problem, hint=hint)
        ids = np.unique(self.owners)
        if clients > len(ids):
            hint = f"use --clients {len(ids)} or less"
            raise InputError(
                "clients",
                got=clients,
                expected=f"at most the {format_count(len(ids), 'client')} of the data",
                hint=hint,
            )
        if clients < len(ids):
            ids = np.sort(rng.choice(ids, clients, replace=False))
        return _shards_of_owners(ids, self.owners), ids


def _as_ids(owners: Any) -> npt.NDArray[Any]:
    """Return the client ids as an array. Large integers stay exact.

    NumPy converts a list with integers below and above 2**63 to float64, which would round them.
    """
    ids = np.asarray(owners)
    if ids.dtype.kind != "f":
        return ids
    if any(isinstance(owner, int | np.integer) and abs(int(owner)) > MAX_EXACT_INTEGER for owner in owners):
        return np.array(list(owners), object)
    return ids


def _have_words(owners: Any) -> bool:
    return any(isinstance(owner, str) for owner in owners)


def _shards_of_owners(ids: npt.NDArray[Any], owners: npt.NDArray[Any]) -> Shards:
    """Return the rows of each client in the sorted `ids`, ascending. `owners` has the client id of each row."""
    place = np.minimum(np.searchsorted(ids, owners), len(ids) - 1)
    rows = np.flatnonzero(ids[place] == owners)
    counts = np.bincount(place[rows], minlength=len(ids))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Shards(rows[np.argsort(place[rows], kind="stable")], offsets)
