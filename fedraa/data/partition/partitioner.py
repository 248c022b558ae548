"""The base class of partitioners, and the partition that they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.data.partition.assigned import check_assignment
from fedraa.data.partition.counts import apportion_classes, draw_by_counts
from fedraa.messages import Index

Assign = Callable[[Index, int, np.random.Generator], Sequence[npt.ArrayLike]]


class Shards(NamedTuple):
    """The samples of every client: client n has the rows `order[offsets[n]:offsets[n + 1]]`.

    Attributes:
        order: The rows of all clients, int64 `[samples]`.
        offsets: The start of each client's rows in `order`, and the length of `order`, int64 `[clients + 1]`.
    """

    order: Index
    offsets: Index


@dataclass(frozen=True, eq=False)
class Partition:
    """The training and test samples of each client. No sample belongs to two clients.

    A custom partitioner may omit training samples. If it omits a whole class, no client has test samples of this class.

    Attributes:
        train: The training samples of each client.
        test: The test samples of each client.
        names: The clients' names, which come from the data; None if the data do not name the clients.
    """

    train: Shards
    test: Shards
    names: tuple[str, ...] | None = None


class Partitioner(ABC):
    """The base class of partitioners, which assign training rows to clients.

        class ByParity(fl.Partitioner):
            def assign(self, labels, clients, rng):
                return np.array_split(np.argsort(labels % 2, kind="stable"), clients)

    A client's test rows are then drawn in the class proportions of its training rows. A function of these arguments is
    also a partitioner. A partitioner with settings must be a frozen dataclass, because its fields are saved.
    """

    needs_classes: ClassVar[bool] = False
    """True if the partitioner divides samples by class, so that every sample must have one."""
    skews: ClassVar[bool] = False
    """True if `skew` changes the inputs of clients."""

    def __init_subclass__(cls) -> None:
        """Reset `deal` to the default in a subclass that overrides only `assign`.

        The subclass might otherwise inherit a `deal` that does not call `assign`.
        """
        if "assign" in vars(cls) and Partitioner.deal.__name__ not in vars(cls):
            cls.deal = Partitioner.deal  # type: ignore[method-assign]

    @abstractmethod
    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        """Return the training rows of each client: one nonempty array of integers per client.

        No row may be returned twice. Rows may be omitted.

        Args:
            labels: The class of each training sample, int64 `[samples]`. 0 for every sample if the objective has no
                classes, as a custom objective that does not derive from Classification.
            clients: The number of clients.
            rng: The random generator. Use no other generator, because only this one depends on the seed of the run.
        """

    def bound(self, owners: Any, test_owners: Any) -> "Partitioner":
        """Return this partitioner, or a copy that contains the client ids of the data.

        Args:
            owners: The client id of each training row. None if the data have no client ids.
            test_owners: The client id of each test row, or None.
        """
        return self

    def skew(self, client: int, clients: int, x: Any) -> Any:
        """Change the training inputs of a client, and return them. Their shape and type stay the same.

        Args:
            client: The client, from 0.
            clients: The number of clients.
            x: The training inputs of the client [n, ...].
        """
        return x

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        """Divide the training and the test samples among the clients.

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
    """Divide the training samples with the function `assign`. Divide the test samples with `match_test_shards`.

    Args:
        name: The name of the partitioner, for errors.
        assign: The function that assigns training rows to clients.
        train: The labels of the training samples.
        test: The labels of the test samples.
        clients: The number of clients.
        rng: The source of random numbers.

    Raises:
        InputError: `assign` failed or returned a malformed result.
    """
    with convert_errors("partition", assign):
        rows_of_clients = assign(train.copy(), clients, rng)
    order, offsets = check_assignment(name, rows_of_clients, len(train), clients)
    return Partition(Shards(order, offsets), match_test_shards(train[order], offsets, test, rng))


def match_test_shards(held: Index, offsets: Index, test: Index, rng: np.random.Generator) -> Shards:
    """Divide the test samples of each class among the clients, in proportion to their training samples of this class.

    Args:
        held: The training labels in client order. Client n has the labels `held[offsets[n]:offsets[n + 1]]`.
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
