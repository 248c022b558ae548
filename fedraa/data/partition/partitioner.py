"""The base class of partitioners, and the partition that they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.assigned import check_assignment
from fedraa.data.partition.counts import apportion_classes, draw_by_counts
from fedraa.errors import InputError

Index = npt.NDArray[np.int64]
Assign = Callable[[Index, int, np.random.Generator], Sequence[npt.ArrayLike]]


class Shards(NamedTuple):
    """The samples of every client: client n owns `order[offsets[n]:offsets[n + 1]]`.

    `order` is int64 `[samples]`, and `offsets` is int64 `[clients + 1]`.
    """

    order: Index
    offsets: Index


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards of the training and of the test samples.

    The built-in partitioners deal every sample. A custom partitioner may omit training samples. If it omits a whole
    class, no test shard has samples of that class. `names` are the names of the clients, if the data have any.
    """

    train: Shards
    test: Shards
    names: tuple[str, ...] | None = None


class Partitioner(ABC):
    """Base class for the assignment of training rows to clients. Test rows follow in the same class proportions.

        class ByParity(fl.Partitioner):
            def assign(self, labels, clients, rng):
                return np.array_split(np.argsort(labels % 2, kind="stable"), clients)

    A plain function with the arguments `(labels, clients, rng)` is also a partitioner. To have settings saved with the
    run, make the partitioner a frozen dataclass with the settings as fields.
    """

    needs_classes: ClassVar[bool] = False
    """True if the partitioner deals by class, so that every sample must have a class."""
    skews: ClassVar[bool] = False
    """True if `skew` changes the features of clients."""

    def __init_subclass__(cls) -> None:
        """Give a subclass that overrides only `assign` the default `deal`, even if its base class overrides `deal`."""
        if "assign" in vars(cls) and Partitioner.deal.__name__ not in vars(cls):
            # mypy does not allow an assignment to a method.
            cls.deal = Partitioner.deal  # type: ignore[method-assign]

    @abstractmethod
    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        """Return the training rows of each client: `clients` arrays of integers, none empty.

        No row may be returned twice. Rows may be omitted.

        Args:
            labels: The class of each training sample, int64 `[samples]`.
            clients: The number of clients.
            rng: The only source of random numbers to use, so that the result follows from the seed.
        """

    def bound(self, owners: Any, test_owners: Any) -> "Partitioner":
        """Return the partitioner for data with these client ids, one per row; None means that the data have no ids."""
        return self

    def skew(self, client: int, clients: int, x: Any) -> Any:
        """Return the client's training samples after its change, with the same shape and type.

        Args:
            client: The client, counted from 0.
            clients: The number of clients.
            x: The training samples of the client [n, ...].
        """
        return x

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        """Return the shards of the training and the test samples.

        Args:
            train: The labels of the training samples.
            test: The labels of the test samples.
            clients: The number of clients.
            rng: The source of random numbers.

        Raises:
            InputError: `assign` failed or returned a malformed result.
        """
        return deal_assigned(type(self).__qualname__, self.assign, train, test, clients, rng)


def deal_assigned(
    name: str, assign: Assign, train: Index, test: Index, clients: int, rng: np.random.Generator
) -> Partition:
    """Return the training shards that `assign` makes, and test shards with the same class proportions.

    Args:
        name: The name of the partitioner for errors.
        assign: The function that assigns training rows to clients.
        train: The labels of the training samples.
        test: The labels of the test samples.
        clients: The number of clients.
        rng: The source of random numbers.

    Raises:
        InputError: `assign` failed or returned a malformed result.
    """
    try:
        rows_of_clients = assign(train.copy(), clients, rng)
    except InputError:
        raise
    # A user-defined partitioner may raise any exception.
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputError("partition", f"{name} failed with {type(error).__name__}: {text}") from error
    order, offsets = check_assignment(name, rows_of_clients, len(train), clients)
    return Partition(Shards(order, offsets), match_test_shards(train[order], offsets, test, rng))


def match_test_shards(held: Index, offsets: Index, test: Index, rng: np.random.Generator) -> Shards:
    """Return test shards in the class proportions of each client's training labels.

    Args:
        held: The training labels in client order; those of client n are `held[offsets[n]:offsets[n + 1]]`.
        offsets: The offsets of the clients.
        test: The labels of the test samples.
        rng: The source of random numbers.
    """
    classes, number = np.unique(held, return_inverse=True)
    clients = len(offsets) - 1
    counts = np.zeros((len(classes), clients), np.int64)
    np.add.at(counts, (number, np.repeat(np.arange(clients), np.diff(offsets))), 1)
    rows = np.flatnonzero(np.isin(test, classes))
    tested = np.searchsorted(classes, test[rows])
    totals = np.bincount(tested, minlength=len(classes))
    order, ends = draw_by_counts(
        tested, apportion_classes(counts / counts.sum(axis=1, keepdims=True), totals, rng), rng
    )
    return Shards(rows[order], ends)
