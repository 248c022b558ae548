"""What a partitioner is, and what a partition is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.assigned import checked
from fedraa.data.partition.counts import apportion, shuffled

Index = npt.NDArray[np.int64]
Assign = Callable[[Index, int, np.random.Generator], Sequence[npt.ArrayLike]]


class Shards(NamedTuple):
    """Client n owns the samples `order[offsets[n]:offsets[n + 1]]`: int64 `[samples]` and `[clients + 1]`."""

    order: Index
    offsets: Index


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards of the training and of the test samples.

    Those that are built in leave no sample out; an own partitioner may, and what it leaves out of a class altogether
    is in no client's test shard either.
    """

    train: Shards
    test: Shards


class Partitioner(ABC):
    """Says which client owns which training row; the test rows follow the classes that a client then has.

        class ByParity(fl.Partitioner):
            def assign(self, labels, clients, rng):
                return np.array_split(np.argsort(labels % 2, kind="stable"), clients)

    A plain function with these arguments is one, too. Values that it takes are best the fields of a frozen dataclass:
    they are written down with the run.
    """

    needs_classes: ClassVar[bool] = False
    """Whether it deals by class: then every sample must have one."""
    skews: ClassVar[bool] = False
    """Whether clients' features differ by `skew`."""

    def __init_subclass__(cls) -> None:
        """Who overrides `assign` of a partitioner that deals in its own way is dealt by what it assigns."""
        if "assign" in vars(cls) and "deal" not in vars(cls):
            cls.deal = Partitioner.deal  # type: ignore[method-assign]  # as said above

    @abstractmethod
    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        """The training rows that each client owns: `clients` arrays of integers, none empty.

        `labels` is int64 `[samples]`. No row may be given twice; rows may be left out. Whatever is random is to be
        drawn from `rng` alone, so that the seed decides.
        """

    def bound(self, owners: Any, test_owners: Any) -> "Partitioner":
        """Itself, for data whose rows belong to the clients with these ids; None: to none."""
        return self

    def skew(self, client: int, clients: int, x: Any) -> Any:
        """The training samples x [n, ...] of one client as it has them, of the same shape and type."""
        return x

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        """The shards of the training labels `train` and of the test labels `test`.

        ValueError says what is wrong with what `assign` has returned.
        """
        return deal_assigned(type(self).__qualname__, self.assign, train, test, clients, rng)


def deal_assigned(
    name: str, assign: Assign, train: Index, test: Index, clients: int, rng: np.random.Generator
) -> Partition:
    """The shards that `assign`, known to the user as `name`, makes of the training labels, and test shards like them.

    ValueError says what is wrong with what it has returned.
    """
    try:
        given = assign(train.copy(), clients, rng)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(("partition: ", "clients: ")):
            raise
        raise ValueError(f"partition: {name} failed with {type(error).__name__}: {error}") from error
    order, offsets = checked(name, given, len(train), clients)
    return Partition(Shards(order, offsets), like(train[order], offsets, test, rng))


def like(held: Index, offsets: Index, test: Index, rng: np.random.Generator) -> Shards:
    """Test rows in the class proportions of each client's training labels, `held[offsets[n]:offsets[n + 1]]`."""
    classes, number = np.unique(held, return_inverse=True)
    clients = len(offsets) - 1
    counts = np.zeros((len(classes), clients), np.int64)
    np.add.at(counts, (number, np.repeat(np.arange(clients), np.diff(offsets))), 1)
    rows = np.flatnonzero(np.isin(test, classes))
    tested = np.searchsorted(classes, test[rows])
    totals = np.bincount(tested, minlength=len(classes))
    order, ends = shuffled(tested, apportion(counts / counts.sum(axis=1, keepdims=True), totals, rng), rng)
    return Shards(rows[order], ends)
