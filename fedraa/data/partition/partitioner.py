"""The base class of partitioners, and the partition that they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.assigned import checked
from fedraa.data.partition.counts import apportion, shuffled
from fedraa.errors import InputError

Index = npt.NDArray[np.int64]
Assign = Callable[[Index, int, np.random.Generator], Sequence[npt.ArrayLike]]


class Shards(NamedTuple):
    """Client n owns the samples `order[offsets[n]:offsets[n + 1]]`: int64 `[samples]` and `[clients + 1]`."""

    order: Index
    offsets: Index


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards of the training and of the test samples.

    The built-in partitioners deal every sample. A custom one may leave samples out; a class that it leaves out is in no
    client's test shard either.
    """

    train: Shards
    test: Shards


class Partitioner(ABC):
    """Assignment of training rows to clients; the test rows follow the classes that a client then has.

        class ByParity(fl.Partitioner):
            def assign(self, labels, clients, rng):
                return np.array_split(np.argsort(labels % 2, kind="stable"), clients)

    A plain function with these arguments is also a partitioner. Make its settings the fields of a frozen dataclass:
    they are saved with the run.
    """

    needs_classes: ClassVar[bool] = False
    """True if it deals by class, so that every sample must have one."""
    skews: ClassVar[bool] = False
    """True if `skew` changes clients' features."""

    def __init_subclass__(cls) -> None:
        """Deal by `assign` in a subclass that overrides it, even if its base class has its own `deal`."""
        if "assign" in vars(cls) and "deal" not in vars(cls):
            cls.deal = Partitioner.deal  # type: ignore[method-assign]

    @abstractmethod
    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        """Return the training rows that each client owns: `clients` arrays of integers, none empty.

        `labels` is int64 `[samples]`. No row may be returned twice; rows may be left out. Draw random numbers only from
        `rng`, so that the seed decides them.
        """

    def bound(self, owners: Any, test_owners: Any) -> "Partitioner":
        """Return the partitioner for data whose rows belong to the clients with these ids; None if to none."""
        return self

    def skew(self, client: int, clients: int, x: Any) -> Any:
        """Return the training samples x [n, ...] as the client has them, of the same shape and type."""
        return x

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        """Return the shards of the training labels `train` and of the test labels `test`.

        Raises InputError if `assign` returned something else than rows for each client.
        """
        return deal_assigned(type(self).__qualname__, self.assign, train, test, clients, rng)


def deal_assigned(
    name: str, assign: Assign, train: Index, test: Index, clients: int, rng: np.random.Generator
) -> Partition:
    """Return the shards that `assign` makes of the training labels, and test shards like them.

    Errors call the function by `name`. Raises InputError if it returned something else than rows for each client.
    """
    try:
        rows_of_clients = assign(train.copy(), clients, rng)
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputError("partition", f"{name} failed with {type(error).__name__}: {text}") from error
    order, offsets = checked(name, rows_of_clients, len(train), clients)
    return Partition(Shards(order, offsets), like(train[order], offsets, test, rng))


def like(held: Index, offsets: Index, test: Index, rng: np.random.Generator) -> Shards:
    """Return test rows in the class proportions of each client's training labels, `held[offsets[n]:offsets[n + 1]]`."""
    classes, number = np.unique(held, return_inverse=True)
    clients = len(offsets) - 1
    counts = np.zeros((len(classes), clients), np.int64)
    np.add.at(counts, (number, np.repeat(np.arange(clients), np.diff(offsets))), 1)
    rows = np.flatnonzero(np.isin(test, classes))
    tested = np.searchsorted(classes, test[rows])
    totals = np.bincount(tested, minlength=len(classes))
    order, ends = shuffled(tested, apportion(counts / counts.sum(axis=1, keepdims=True), totals, rng), rng)
    return Shards(rows[order], ends)
