"""Functions that create a partitioner from text or an object, and divide samples with a partitioner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.components.component_errors import names_text, unknown_component_error
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import KIND
from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.features import Colour, Noise, Rotation
from fedraa.data.partition.hsu import Hsu
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.labels import Labels
from fedraa.data.partition.mixture import Mixture
from fedraa.data.partition.natural import Natural
from fedraa.data.partition.partitioner import Assign, Partition, Partitioner, deal_assigned
from fedraa.data.partition.quantity import DirichletSizes, LogNormal, PowerLaw, Zipf
from fedraa.data.partition.shards import SortedShards
from fedraa.errors import InputError
from fedraa.messages import Index

_BUILTIN: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "hsu": Hsu,
    "mixture": Mixture,
    "labels": Labels,
    "shards": SortedShards,
    "quantity": DirichletSizes,
    "zipf": Zipf,
    "powerlaw": PowerLaw,
    "lognormal": LogNormal,
    "noise": Noise,
    "rotation": Rotation,
    "colour": Colour,
    "natural": Natural,
}
# In the short form `name:number`, the number sets this field of the partitioner.
_NUMBER = {
    "dirichlet": "alpha",
    "hsu": "alpha",
    "mixture": "alpha",
    "labels": "per_client",
    "shards": "per_client",
    "quantity": "beta",
    "zipf": "exponent",
    "powerlaw": "exponent",
    "lognormal": "sigma",
    "noise": "level",
    "rotation": "degrees",
    "colour": "degrees",
}


def _from_short(text: str) -> Partitioner:
    """Return the partitioner for a text `name:number`, such as `dirichlet:0.1`."""
    name, _, written = (part.strip() for part in text.partition(":"))
    if name not in _BUILTIN:
        raise unknown_component_error("partition", name, _BUILTIN)
    if name not in _NUMBER:
        raise InputError("partition", f"{name} takes no number", got=text, hint=f"use --partition {name}")
    partitioner: Partitioner = PARTITIONERS.resolve({KIND: name, _NUMBER[name]: _parse_number(text, written)})
    return partitioner


def _parse_number(text: str, written: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    raise InputError("partition", got=text, expected="a number after the colon, as in dirichlet:0.1")


PARTITIONERS: ComponentRegistry[Any] = ComponentRegistry("partition", (), _BUILTIN, _from_short)


@dataclass(frozen=True)
class _Called(Partitioner):
    """A partitioner that calls a user's function. Error messages contain `name`."""

    name: str
    function: Assign

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[npt.ArrayLike]:
        return self.function(labels, clients, rng)

    def deal(self, train: Index, test: Index, clients: int, rng: np.random.Generator) -> Partition:
        return deal_assigned(self.name, self.function, train, test, clients, rng)


def make_partitioner(description: object, *, dirichlet: float | None = None) -> Partitioner:
    """Return the partitioner that the user describes.

    Args:
        description: A text such as `dirichlet`, `dirichlet:0.1`, `dirichlet(alpha=0.1)` or `package.module:Name`, an
            object, or a function.
        dirichlet: The concentration to use if `description` is `dirichlet` without a value.

    Raises:
        InputError: There is no such partitioner.
    """
    if dirichlet is not None and isinstance(description, str) and description == "dirichlet":
        description = {KIND: description}
    if dirichlet is not None and isinstance(description, Mapping) and description.get(KIND) == "dirichlet":
        description = {_NUMBER["dirichlet"]: dirichlet, **description}
    if isinstance(description, list | tuple) or (isinstance(description, Mapping) and KIND not in description):
        hint = "pass the rows of clients as a function: lambda labels, clients, rng: rows"
        raise InputError("partition", got=description, expected=names_text(_BUILTIN), hint=hint)
    partitioner = PARTITIONERS.resolve(description)
    if isinstance(partitioner, Partitioner):
        return partitioner
    function = getattr(partitioner, "assign", partitioner)
    name = getattr(partitioner, "__qualname__", type(partitioner).__qualname__)
    if not callable(function):
        expected = f"{names_text(_BUILTIN)}, a function (labels, clients, rng), or an object with a method assign"
        raise InputError("partition", got=partitioner, expected=expected)
    return _Called(name, function)


def divide_samples(
    partitioner: Partitioner, labels_train: Index, labels_test: Index, clients: int, *, seed: int
) -> Partition:
    """Divide the samples among the clients. Every client gets at least one training sample, but perhaps no test sample.

    Args:
        partitioner: The partitioner.
        labels_train: The labels of the training samples.
        labels_test: The labels of the test samples.
        clients: The number of clients.
        seed: The seed of the partitioner's random numbers.

    Raises:
        InputError: The partitioner cannot divide these samples, or a custom partitioner returns a malformed result.
    """
    if clients < 1:
        raise InputError("clients", got=clients, expected="1 or more")
    labels_train, labels_test = (_class_per_sample(partitioner, labels) for labels in (labels_train, labels_test))
    unknown = np.setdiff1d(labels_test, labels_train)
    # With natural data, each test sample already belongs to a client.
    if unknown.size and not isinstance(partitioner, Natural):
        problem = f"they contain class {unknown[0]}, which has no training sample"
        raise InputError("test labels", problem, hint="add training samples of this class, or remove its test samples")
    # The partitioner Natural checks a stricter limit itself: the number of clients in the data.
    if not isinstance(partitioner, Natural):
        refuse_empty_clients(clients, len(labels_train))
    return partitioner.deal(labels_train, labels_test, clients, np.random.default_rng(seed))


def refuse_empty_clients(clients: int, samples: int) -> None:
    """Raise InputError if there are more clients than training samples."""
    if clients > samples:
        expected = f"{samples} at most, the number of training samples"
        raise InputError("clients", got=clients, expected=expected, hint="use fewer clients or more data")


def _class_per_sample(partitioner: Partitioner, labels: npt.NDArray[Any]) -> Index:
    """Return the class of each sample. Without classes, return 0 for every sample.

    Raises InputError if the partitioner needs classes and there are none.
    """
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return labels
    if partitioner.needs_classes:
        problem = f"{type(partitioner).__name__} deals samples by class, but these samples have no classes"
        hint = "choose iid, quantity, zipf, powerlaw, lognormal or natural, "
        hint += "or derive a custom objective for labels from fedraa.Classification"
        raise InputError("partition", problem, hint=hint)
    return np.zeros(len(labels), np.int64)
