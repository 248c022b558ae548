"""A data set from which clients read their samples when they train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.data.check import check_class_count
from fedraa.data.dataset import count_rows
from fedraa.data.sources.rows import as_rows, class_names
from fedraa.data.tree import Tree, format_shapes, join_trees, sample_shapes
from fedraa.errors import InputError, locate_error, no_effect_error

MAX_NAMES = 10


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Training samples, test samples and the client of each sample, without scaling.

        fl.FederatedDataset("writers", train=(x, y), test=(x_test, y_test), clients=writer_of_row)
        fl.FederatedDataset("folder", train=ImageFolder("train"), test=ImageFolder("test"))

    A client reads its training samples when it trains. If samples have random values, it reads them again in every
    epoch. A function can also generate the samples of each client:

        fl.FederatedDataset("generated", train=samples_of, sizes=20, test=(x_test, y_test), classes=10)

    A run scales the samples by default (`standardise`). It reads the test samples once at the start.

    Attributes:
        name: Name of the data set.
        train: The training samples: a pair of arrays (x, y), a map-style data set of torch, a table of Hugging Face's
            `datasets`, a custom Rows, or a function of the client's number that returns (x, y).
        test: The test samples, in one of the forms of `train`, but not as a function.
        classes: Number of classes. None computes it from the labels.
        clients: The client of each training row, as a number or a word. Without it, a partitioner divides the samples.
        test_clients: The client of each test row, as a number or a word.
        sizes: If `train` is a function, the number of samples: one number for all clients, or one per client.
        input: The column of samples in a table.
        target: The column of labels in a table.
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
        if not self.made and self.sizes is not None:
            raise no_effect_error(f"{place}: sizes", self.sizes, "samples that no function generates")
        if self.made and self.clients is not None:
            raise no_effect_error(f"{place}: clients", self.clients, "a function as train")
        if self.test_clients is not None and self.clients is None:
            raise InputError(f"{place}: test_clients", "it has no effect without clients", hint="leave it out")
        if self.classes is not None:
            check_class_count(f"{place}: classes", self.classes)
        self._refuse_other_class_names()
        for name, owners in (("clients", self.clients), ("test_clients", self.test_clients)):
            if owners is not None:
                _check_owners(f"{place}: {name}", owners)

    def _refuse_other_class_names(self) -> None:
        """Raise InputError if a label has different class names in train and test."""
        train, test = (class_names(data, self.target) for data in (self.train, self.test))
        for label, (name, other) in enumerate(zip(train, test, strict=False)):
            if name != other:
                # The error shows only `MAX_NAMES` names. The name of this label must be one of them.
                start = label if label >= MAX_NAMES else 0
                lists = [", ".join(names[start : start + MAX_NAMES]) for names in (train, test)]
                raise InputError(
                    f"dataset {self.name!r}: label {label}",
                    f"it is {name!r} in train but {other!r} in test; train has {lists[0]}, test has {lists[1]}",
                    hint="use the same order of classes in train and test",
                )

    def __repr__(self) -> str:
        """Return a text with the name of the data set and the number of its training samples."""
        if self.made:
            return f"FederatedDataset {self.name!r} of samples that a function generates"
        rows = self.train
        if isinstance(rows, tuple) and len(rows) == 2:
            rows = rows[1]
        return f"FederatedDataset {self.name!r} of {count_rows(rows)} training samples"

    @property
    def made(self) -> bool:
        """Return True if a function generates the samples of each client."""
        return callable(self.train) and not hasattr(self.train, "__getitem__") and not hasattr(self.train, "read")

    @property
    def has_clients(self) -> bool:
        return self.clients is not None or self.made

    @property
    def own_clients(self) -> int | None:
        """Return the number of clients that the data define. If any number is possible, return None."""
        if self.clients is not None:
            return len(set(self.clients))
        sizes = np.asarray(self.sizes)
        if not sizes.ndim:
            return None
        return len(sizes)

    @classmethod
    def of_clients(
        cls,
        name: str,
        train: Mapping[Any, tuple[Tree, Any]],
        test: Any = None,
        *,
        test_of_clients: Mapping[Any, tuple[Tree, Any]] | None = None,
        classes: int | None = None,
    ) -> "FederatedDataset":
        """Return a data set from a dict with the samples of each client.

        Args:
            name: The name of the data set.
            train: The training samples (x, y) of each client.
            test: The test samples. None uses the samples in `test_of_clients`.
            test_of_clients: The test samples (x, y) of each client.
            classes: The number of classes. None computes it from the labels.
        """
        if test is not None and test_of_clients is not None:
            raise no_effect_error(f"dataset {name!r}: test_of_clients", test_of_clients, "test")
        x, y, owners = _join_clients(name, train)
        test_owners = None
        if test is None:
            if test_of_clients is None:
                raise InputError(f"dataset {name!r}: test", got=None, expected="test samples, or test_of_clients")
            x_test, y_test, test_owners = _join_clients(name, test_of_clients)
            test = (x_test, y_test)
        return cls(name, (x, y), test, classes, owners, test_owners)


def _check_owners(field: str, owners: Any) -> None:
    """Raise InputError if `owners` is not a sequence of numbers or words."""
    expected = "a number or a word for each row"
    if isinstance(owners, str) or not hasattr(owners, "__len__") or not hasattr(owners, "__iter__"):
        raise InputError(field, got=owners, expected=expected)
    for owner in owners:
        if owner is not None and not isinstance(owner, str | int | float | np.generic):
            raise InputError(field, got=owner, expected=expected)


def _join_clients(name: str, samples: Mapping[Any, tuple[Tree, Any]]) -> tuple[Tree, Any, list[Any]]:
    if not isinstance(samples, Mapping):
        expected = "a dict with a pair (x, y) for each client, as dict(enumerate(pairs))"
        raise InputError(f"dataset {name!r}: clients", got=samples, expected=expected)
    # The names become text if one of them is text, and 1 and "1" would be one client.
    if len(set(map(str, samples))) < len(samples):
        problem = f"two of the {len(samples)} names are the same text"
        raise InputError(f"dataset {name!r}: clients", problem, hint="rename one of them")
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
        shapes = sample_shapes(x)
        if shapes != sample_shapes(xs[0]):
            problem = f"samples have the shape {format_shapes(shapes)}"
            expected = f"{format_shapes(sample_shapes(xs[0]))}, as other clients have"
            raise InputError(f"dataset {name!r}: client {client!r}", problem, expected=expected)
        if y.shape[1:] != ys[0].shape[1:]:
            problem = f"labels have the shape {list(y.shape[1:])}"
            expected = f"{list(ys[0].shape[1:])}, as other clients have"
            raise InputError(f"dataset {name!r}: client {client!r}", problem, expected=expected)
    if not xs:
        raise InputError(f"dataset {name!r}", "there is no client")
    return join_trees(xs), np.concatenate(ys), owners
