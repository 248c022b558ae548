"""Samples with clients of their own, read where they are trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.data.dataset import count_rows
from fedraa.data.sources.rows import as_rows, class_names
from fedraa.data.tree import Tree, joined, leaves
from fedraa.errors import short_text

MAX_NAMES = 10


@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Training samples by row, the client that each belongs to, and test samples.

    `train` and `test` are pairs of arrays (x, y), map-style data sets of torch, tables of Hugging Face's `datasets`
    (with the columns `input` and `target`), or your own Rows. Training samples are read by the client that trains on
    them, random ones again in every epoch. Test samples are read once, before the start. `clients` says for every
    training row whose it is, by a number or a word, and `test_clients` the same for test rows; without them a
    partitioner deals the samples, as of a Dataset. `classes` is the number of classes (default: from the labels).

        fl.FederatedDataset("writers", train=(x, y), test=(x_test, y_test), clients=writer_of_row)
        fl.FederatedDataset("folder", train=ImageFolder("train"), test=ImageFolder("test"))

    A client's samples may also be made when it trains: `train` is then a function of the client's number that gives
    its (x, y), and `sizes` how many samples each has, one number for all or one per client.

        fl.FederatedDataset("made", train=samples_of, sizes=20, test=(x_test, y_test), classes=10)

    The values are those that the user has: a run with `standardise`, the default, scales floats and bytes by the
    statistics of the training samples.
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
        if self.made and self.sizes is None:
            raise ValueError(f"dataset {self.name!r}: train is a function; give sizes, how many samples clients have")
        if self.classes is not None and (isinstance(self.classes, bool) or self.classes < 1):
            raise ValueError(
                f"dataset {self.name!r}: classes is {short_text(self.classes)}; it must be how many there are"
            )
        self._refuse_other_class_names()
        for what, owners in (("clients", self.clients), ("test_clients", self.test_clients)):
            if owners is not None and (wrong := _no_owners(owners)):
                raise ValueError(f"dataset {self.name!r}: {what} {wrong}; give a number or a word for each row")

    def _refuse_other_class_names(self) -> None:
        """Raise ValueError if a label means one class in train and another in test."""
        train, test = (class_names(data, self.target) for data in (self.train, self.test))
        for label, (name, other) in enumerate(zip(train, test, strict=False)):
            if name != other:
                # Of many names only those from the first difference on are shown.
                start = label if label >= MAX_NAMES else 0
                lists = [", ".join(names[start : start + MAX_NAMES]) for names in (train, test)]
                raise ValueError(
                    f"dataset {self.name!r}: label {label} is {name!r} in train but {other!r} in test (the classes are "
                    f"{lists[0]} in train, {lists[1]} in test); give both the same order of classes"
                )

    def __repr__(self) -> str:
        """Return the name and the number of training samples, and no values."""
        rows = self.train[1] if isinstance(self.train, tuple) and len(self.train) == 2 else self.train
        samples = "samples that a function makes" if self.made else f"{count_rows(rows)} training samples"
        return f"FederatedDataset {self.name!r} of {samples}"

    @property
    def made(self) -> bool:
        """Whether a client's samples are what a function of its number gives."""
        return callable(self.train) and not hasattr(self.train, "__getitem__") and not hasattr(self.train, "read")

    @property
    def has_clients(self) -> bool:
        return self.clients is not None or self.made

    @property
    def own_clients(self) -> int | None:
        """How many clients the data have; None if they do not say."""
        if self.clients is not None:
            return len(set(self.clients))
        return None if self.sizes is None or isinstance(self.sizes, int) else len(self.sizes)

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
        """From each client's own samples: `{client: (x, y)}`.

        `test` are samples for all, or None: then the clients' own test samples, `test_of_clients`, together are.
        """
        x, y, owners = _joined(name, train)
        test_owners = None
        if test is None:
            if test_of_clients is None:
                raise ValueError(f"dataset {name!r}: there are no test samples; give test or test_of_clients")
            x_test, y_test, test_owners = _joined(name, test_of_clients)
            test = (x_test, y_test)
        return cls(name, (x, y), test, classes, owners, test_owners)


def _no_owners(given: Any) -> str | None:
    """What is wrong with what is to say whose each row is."""
    if isinstance(given, str) or not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        return f"is {type(given).__name__}"
    strange = {type(owner) for owner in given} - {type(None)}
    strange = {kind for kind in strange if not issubclass(kind, str | int | float | np.generic)}
    return f"has {min(kind.__name__ for kind in strange)}" if strange else None


def _joined(name: str, given: Mapping[Any, tuple[Tree, Any]]) -> tuple[Tree, Any, list[Any]]:
    xs, ys, owners = [], [], []
    for client, pair in given.items():
        try:
            rows = as_rows("it", pair)
            if not len(rows):
                raise ValueError("it has no sample")
            x, y = rows.read(np.arange(len(rows)))
        except ValueError as error:
            raise ValueError(f"dataset {name!r}: client {client!r}: {error}") from None
        xs.append(x)
        ys.append(y)
        owners += [client] * len(y)
        if [part.shape[1:] for part in leaves(x)] != [part.shape[1:] for part in leaves(xs[0])]:
            shapes = [[list(part.shape[1:]) for part in leaves(one)] for one in (x, xs[0])]
            raise ValueError(f"dataset {name!r}: samples of client {client!r} are {shapes[0]}, others {shapes[1]}")
        if y.shape[1:] != ys[0].shape[1:]:
            theirs, others = list(y.shape[1:]), list(ys[0].shape[1:])
            raise ValueError(f"dataset {name!r}: labels of client {client!r} are {theirs}, others {others}")
    if not xs:
        raise ValueError(f"dataset {name!r}: there is no client")
    return joined(xs), np.concatenate(ys), owners
