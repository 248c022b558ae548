"""A data set with samples that already belong to clients, or that each client reads when it trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.data.dataset import count_rows
from fedraa.data.sources.rows import as_rows, class_names
from fedraa.data.tree import Tree, join_trees, list_leaves
from fedraa.errors import InputError, locate_error

MAX_NAMES = 10


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Training samples by row, the client of each row, and test samples.

    `train` and `test` are pairs of arrays (x, y), map-style data sets of torch, tables of Hugging Face's `datasets`
    (with the columns `input` and `target`), or custom Rows. A client reads its training samples when it trains, and
    reads random ones again in every epoch. Test samples are read once, before the start. `clients` holds the client of
    every training row, as a number or a word, and `test_clients` the client of every test row. Without them a
    partitioner deals the samples, as for a Dataset. `classes` is the number of classes (default: from the labels).

        fl.FederatedDataset("writers", train=(x, y), test=(x_test, y_test), clients=writer_of_row)
        fl.FederatedDataset("folder", train=ImageFolder("train"), test=ImageFolder("test"))

    A function may also make a client's samples when it trains. Then `train` is a function of the client's number that
    returns (x, y), and `sizes` is the number of samples: one number for all clients, or one per client.

        fl.FederatedDataset("made", train=samples_of, sizes=20, test=(x_test, y_test), classes=10)

    The values are raw. A run with `standardise`, the default, scales floats and bytes by the statistics of the training
    samples.
    """

    name: str
    train: Any
    test: Any
    classes: int | None = None
    clients: Sequence[Any] | None = None
    test_clients: Sequence[Any] | None = None
    sizes: int | Sequence[int] | None = None
    input: str = "image"
    target: str = "label"

    def __post_init__(self) -> None:
        place = f"dataset {self.name!r}"
        if self.made and self.sizes is None:
            expected = "the number of samples per client, because train is a function"
            raise InputError(f"{place}: sizes", got=None, expected=expected)
        if self.classes is not None and (isinstance(self.classes, bool) or self.classes < 1):
            raise InputError(f"{place}: classes", got=self.classes, expected="the number of classes")
        self._refuse_other_class_names()
        for name, owners in (("clients", self.clients), ("test_clients", self.test_clients)):
            if owners is not None:
                _check_owners(f"{place}: {name}", owners)

    def _refuse_other_class_names(self) -> None:
        """Raise InputError if a label stands for different classes in train and test."""
        train, test = (class_names(data, self.target) for data in (self.train, self.test))
        for label, (name, other) in enumerate(zip(train, test, strict=False)):
            if name != other:
                # The error shows only `MAX_NAMES` names. If the first difference is later, they start there.
                start = label if label >= MAX_NAMES else 0
                lists = [", ".join(names[start : start + MAX_NAMES]) for names in (train, test)]
                raise InputError(
                    f"dataset {self.name!r}: label {label}",
                    f"it is {name!r} in train but {other!r} in test; train has {lists[0]}, test has {lists[1]}",
                    hint="give both the same order of classes",
                )

    def __repr__(self) -> str:
        """Return the name and the number of training samples, but no values."""
        if self.made:
            return f"FederatedDataset {self.name!r} of samples that a function makes"
        rows = self.train
        if isinstance(rows, tuple) and len(rows) == 2:
            rows = rows[1]
        return f"FederatedDataset {self.name!r} of {count_rows(rows)} training samples"

    @property
    def made(self) -> bool:
        """Return True if a function makes the samples of each client."""
        return callable(self.train) and not hasattr(self.train, "__getitem__") and not hasattr(self.train, "read")

    @property
    def has_clients(self) -> bool:
        return self.clients is not None or self.made

    @property
    def own_clients(self) -> int | None:
        """Return the number of clients in the data, or None if it is unknown."""
        if self.clients is not None:
            return len(set(self.clients))
        if self.sizes is None or isinstance(self.sizes, int):
            return None
        return len(self.sizes)

    @classmethod
    def of_clients(
        cls,
        name: str,
        train: Mapping[Any, tuple[Tree, Any]],
        test: Any,
        *,
        test_of_clients: Mapping[Any, tuple[Tree, Any]] | None = None,
        classes: int | None = None,
    ) -> "FederatedDataset":
        """Return a data set with the training samples `{client: (x, y)}`.

        Args:
            name: The name of the data set.
            train: The training samples of each client.
            test: The test samples; None means all samples in `test_of_clients`.
            test_of_clients: The test samples of each client.
            classes: The number of classes (default: from the labels).
        """
        x, y, owners = _join_clients(name, train)
        test_owners = None
        if test is None:
            if test_of_clients is None:
                raise InputError(f"dataset {name!r}: test", got=None, expected="test samples, or test_of_clients")
            x_test, y_test, test_owners = _join_clients(name, test_of_clients)
            test = (x_test, y_test)
        return cls(name, (x, y), test, classes, owners, test_owners)


def _check_owners(field: str, owners: Any) -> None:
    """Raise InputError if `owners` is not a sequence of numbers or words. `deal` reports owners that are None."""
    expected = "a number or a word for each row"
    if isinstance(owners, str) or not hasattr(owners, "__len__") or not hasattr(owners, "__iter__"):
        raise InputError(field, got=owners, expected=expected)
    for owner in owners:
        if owner is not None and not isinstance(owner, str | int | float | np.generic):
            raise InputError(field, got=owner, expected=expected)


def _join_clients(name: str, samples: Mapping[Any, tuple[Tree, Any]]) -> tuple[Tree, Any, list[Any]]:
    xs, ys, owners = [], [], []
    for client, pair in samples.items():
        try:
            rows = as_rows("samples", pair)
            if not len(rows):
                raise InputError("samples", "there is none")
            x, y = rows.read(np.arange(len(rows)))
        except ValueError as error:
            raise locate_error(error, f"dataset {name!r}: client {client!r}") from None
        xs.append(x)
        ys.append(y)
        owners += [client] * len(y)
        if [part.shape[1:] for part in list_leaves(x)] != [part.shape[1:] for part in list_leaves(xs[0])]:
            problem = f"samples have the shape {_format_shapes(x)}"
            expected = f"{_format_shapes(xs[0])}, as other clients have"
            raise InputError(f"dataset {name!r}: client {client!r}", problem, expected=expected)
        if y.shape[1:] != ys[0].shape[1:]:
            problem = f"labels have the shape {list(y.shape[1:])}"
            expected = f"{list(ys[0].shape[1:])}, as other clients have"
            raise InputError(f"dataset {name!r}: client {client!r}", problem, expected=expected)
    if not xs:
        raise InputError(f"dataset {name!r}", "there is no client")
    return join_trees(xs), np.concatenate(ys), owners


def _format_shapes(x: Tree) -> str:
    return " and ".join(str(list(part.shape[1:])) for part in list_leaves(x))
