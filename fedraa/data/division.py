"""The division of a data set among clients, with scaling and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fedraa.data.check import Targets, as_dataset, count_classes
from fedraa.data.dataset import Dataset, not_finite
from fedraa.data.federated import Federated, federate_dataset
from fedraa.data.measured import read_measured
from fedraa.data.partition.divide import divide_samples
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.partitioner import Partition, Partitioner, Shards
from fedraa.data.scaling import Scaling, apply_scaling, apply_scaling_in_place, measure_scaling
from fedraa.data.sources.clients import (
    ClientSource,
    GeneratedSamples,
    StoredSamples,
    as_inputs,
    as_labels,
    as_targets,
    find_unknown_label,
)
from fedraa.data.sources.contents import inspect_contents
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.sources.random_items import are_rows_steady, is_steady, read_whole, warn_unsteady
from fedraa.data.sources.rows import ArrayRows, Rows, as_rows
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Array, Tree, first_not_finite, join_trees, map_tree, sample_shapes, take_rows
from fedraa.data.validation_split import hold_back
from fedraa.errors import InputError, locate_error, locate_in_dataset
from fedraa.numbers import format_count
from fedraa.rng import generator

FEW = 1024
"""Number of training samples that are read before the run, to find shapes and to fit transforms."""
FITTED = 8192
"""Maximum number of training samples to which transforms are fitted. They are drawn at random."""
HELD_BYTES = 16 * 2**20
"""A data set object with more bytes is read once into arrays. Processes can share arrays, but they copy objects."""
OPTIONS = ("dataset ", "partition", "clients", "transforms")
"""If the field of an error begins with one of these words, the name of the data set is not added to it."""


@dataclass(frozen=True)
class DivisionSettings:
    """The settings of the division of a data set among clients.

    Attributes:
        partitioner: The partitioner, which assigns samples to clients.
        clients: The number of clients.
        seed: The seed of the run.
        transforms: The changes of samples before training.
        allow_nan: True if training samples may contain NaN or infinite values.
        targets: A check that also converts the targets. None means one class label per sample.
        validation: The fraction of each client's training samples that replace the usual test samples. 0 keeps the
            usual test samples.
        standardise: True to scale inputs by the mean and the variance of the training samples. These include
            validation samples.
    """

    partitioner: Partitioner
    clients: int
    seed: int
    transforms: Transforms = field(default_factory=Transforms)
    allow_nan: bool = False
    targets: Targets | None = None
    validation: float = 0.0
    standardise: bool = False

    @property
    def scales(self) -> bool:
        """Return True if the run scales inputs. If a transform scales them, the run does not."""
        return self.standardise and not any(part.scales for part in self.transforms.parts)

    def labels(self, y: Array) -> Array:
        """Return the labels for the partitioner. If the targets have no labels, return an empty array [n, 0]."""
        if self.targets is None:
            return y
        return np.zeros((len(y), 0), np.int64)


def divide_dataset(dataset: Dataset | FederatedDataset, how: DivisionSettings) -> Federated:
    """Divide a data set among clients.

    Raises InputError if a sample cannot be used. The error names the client and the row.
    """
    data = _deal_without_validation(dataset, how)
    if how.validation:
        return hold_back(data, how.validation, how.seed)
    return data


def _deal_without_validation(dataset: Dataset | FederatedDataset, how: DivisionSettings) -> Federated:
    if isinstance(dataset, Dataset):
        return _of_arrays(dataset, how)
    try:
        return _of_clients(dataset, how)
    # The user's data set can raise any exception.
    except Exception as error:
        if isinstance(error, InputError) and error.field.startswith(OPTIONS):
            raise
        raise locate_in_dataset(error, dataset.name) from error


def _of_arrays(dataset: Dataset, how: DivisionSettings) -> Federated:
    train, test = how.labels(dataset.y_train), how.labels(dataset.y_test)
    shards = divide_samples(how.partitioner, train, test, how.clients, seed=how.seed)
    if not how.allow_nan:
        _refuse_nan(dataset, shards)
    data = replace(federate_dataset(dataset, shards), names=shards.names)
    if how.scales:
        data = _scale_samples(data, dataset)
    if how.targets is not None:
        data = replace(data, labels=None)
    if how.partitioner.skews:
        pieces = [how.partitioner.skew(n, how.clients, data.client(n)[0]) for n in range(how.clients)]
        data = replace(data, dataset=replace(data.dataset, x_train=join_trees(pieces)))
    fixed = how.transforms.fixed
    if fixed:
        count = len(data.y_train)
        seen = np.sort(generator(how.seed, "few").choice(count, min(count, FITTED), replace=False))
        fixed = fixed.fitted(take_rows(data.dataset.x_train, seen))
        x_train, x_test = fixed.all(data.dataset.x_train), fixed.all(data.dataset.x_test)
        data = replace(data, dataset=replace(data.dataset, x_train=x_train, x_test=x_test), fixed=fixed)
    return data


def _scale_samples(data: Federated, dataset: Dataset) -> Federated:
    """Return `data` with scaled samples. The user's data set determines the scaling.

    The training samples of `data` are a copy, so they are scaled in place.
    """
    scaling = measure_scaling(dataset.x_train)
    apply_scaling_in_place(scaling, data.x_train)
    x_test = apply_scaling(scaling, dataset.x_test)
    return replace(data, dataset=replace(data.dataset, x_test=x_test), scaling=scaling)


def _refuse_nan(dataset: Dataset, shards: Partition) -> None:
    row = first_not_finite(dataset.x_train)
    if row is None:
        return
    owner = ""
    place = np.flatnonzero(shards.train.order == row)
    if place.size:
        client = int(np.searchsorted(shards.train.offsets, place[0], side="right")) - 1
        owner = f" of client {client}"
        if shards.names:
            owner = f" of client {shards.names[client]!r}"
    raise not_finite(
        f"dataset {dataset.name!r}: x_train row {row}{owner}",
        "correct it, or give --allow-nan, in Python allow_nan=True",
    )


def _of_clients(data: FederatedDataset, how: DivisionSettings) -> Federated:
    x_test, y_test = _read_test(data, how.seed)
    _check_owners(data, "test_clients", data.test_clients, len(y_test))
    how = replace(how, partitioner=how.partitioner.bound(data.clients, data.test_clients))
    if data.made:
        return _deal_generated(data, x_test, y_test, how)
    rows = as_rows("train", data.train, data.input, data.target)
    if not len(rows):
        raise InputError("train", "it has no sample")
    generators = ItemGenerators.of(rows)
    steady = are_rows_steady(rows, generators, how.seed)
    if not steady:
        warn_unsteady(data.name, "train")
    with generators.seed_temporarily(how.seed, "labels"):
        y = as_targets(rows.labels())
    classes = data.classes or 0
    _check_owners(data, "clients", data.clients, len(y))
    if how.targets is None:
        classes = _check_labels(data, y)
    whole = None
    if steady and _is_held(rows):
        whole = read_whole(rows, generators, how.seed)
    if whole is not None:
        x, y = whole
        try:
            dataset = as_dataset(Dataset(data.name, x, as_targets(y), x_test, y_test, classes), how.targets)
        except ValueError as error:
            raise _with_client(error, data, as_targets(y), how) from None
        _check_classes(data, dataset.classes)
        return _of_arrays(dataset, how)
    if how.targets is not None:
        try:
            y, y_test, classes = how.targets(y, y_test, classes)
        except ValueError as error:
            raise _with_client(error, data, y, how) from None
        _check_classes(data, classes)
    shards = divide_samples(how.partitioner, how.labels(y), how.labels(y_test), how.clients, seed=how.seed)
    order, offsets = shards.train
    labels = None
    if how.targets is None:
        labels = y[order]
    samples = StoredSamples(rows, order, offsets)
    test = _TestData(x_test, y_test, shards.test)
    return _make_streamed(data, samples, test, classes, how, labels=labels, names=shards.names, unsteady=not steady)


def _deal_generated(dataset: FederatedDataset, x_test: Tree, y_test: Array, how: DivisionSettings) -> Federated:
    sizes = np.asarray(dataset.sizes)
    if sizes.dtype.kind not in "iu" or sizes.ndim > 1:
        raise InputError("sizes", got=dataset.sizes, expected="one whole number, or one per client")
    sizes = np.full(how.clients, sizes, np.int64) if sizes.ndim == 0 else sizes.astype(np.int64)
    if len(sizes) != how.clients:
        hint = f"use --clients {len(sizes)}"
        raise InputError(
            "clients", got=how.clients, expected=f"the {format_count(len(sizes), 'client')} of the data", hint=hint
        )
    without = np.flatnonzero(sizes < 1)
    if without.size:
        client = without[0]
        raise InputError(f"sizes: client {client}", got=int(sizes[client]), expected="one sample or more")
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    no_labels = np.zeros(0, np.int64)
    rng = np.random.default_rng(how.seed)
    shards = Iid().deal(no_labels, np.zeros(len(y_test), np.int64), how.clients, rng).test
    classes = dataset.classes or 0
    if how.targets is not None:
        y_test, _, classes = how.targets(y_test, y_test, classes)
        _check_classes(dataset, classes)
    if dataset.classes is None and y_test.dtype.kind == "i":
        raise InputError("classes", got=None, expected="the number of classes, because train is a function")
    samples = GeneratedSamples(dataset.train, offsets)
    return _make_streamed(dataset, samples, _TestData(x_test, y_test, shards), classes, how)


class _TestData(NamedTuple):
    """The inputs and targets of all test samples, and the rows of each client's test samples."""

    x: Tree
    y: Array
    shards: Shards


def _make_streamed(
    dataset: FederatedDataset,
    samples: StoredSamples | GeneratedSamples,
    test: _TestData,
    classes: int,
    how: DivisionSettings,
    *,
    labels: Array | None = None,
    names: tuple[str, ...] | None = None,
    unsteady: bool = False,
) -> Federated:
    """Return a divided data set. Clients read their samples from it when they train.

    This function reads only a few training samples.

    Args:
        dataset: The data set.
        samples: The training samples that clients read.
        test: The test samples.
        classes: The number of classes.
        how: The settings.
        labels: The labels of all training samples, client by client. None if they are unknown.
        names: The names of the clients in the data. None if they have no names.
        unsteady: True if two reads of a sample can give different results.
    """
    if how.targets is None:
        row = find_unknown_label(as_labels(test.y, "test labels"), classes)
        if row is not None:
            raise InputError(f"test row {row}", got=int(test.y[row]), expected=f"labels from 0 to {classes - 1}")
    nothing = Transforms((), how.seed)
    plain = ClientSource(
        dataset.name,
        samples,
        how.partitioner,
        nothing,
        classes,
        sample_shapes(test.x),
        test.y.shape[1:],
        how.targets,
        how.allow_nan,
        how.seed,
        unsteady,
    )
    if isinstance(samples, GeneratedSamples) and not is_steady(lambda: plain.client(0), plain.generators, how.seed):
        warn_unsteady(dataset.name, "train")
        plain = replace(plain, unsteady=True)
    name = f"dataset {dataset.name!r}: train"
    scaling: Scaling = None
    if how.scales:
        scaling = measure_scaling(read_measured(samples, how.seed, name))
    plain = replace(plain, scaling=scaling)
    x, y = _read_few(plain, how.seed)
    if not how.scales:
        with plain.generators.seed_temporarily(how.seed, "fixed items", 0):
            as_inputs(samples(0)[0], name)
    x_test = apply_scaling(scaling, test.x)
    fixed = nothing
    if how.transforms.fixed:
        fixed = how.transforms.fixed.fitted(x).fixed
    source = replace(plain, fixed=fixed)
    in_memory = Dataset(dataset.name, fixed.all(x), y, fixed.all(x_test), test.y, classes)
    data = Federated(in_memory, samples.offsets, test.shards.order, test.shards.offsets, source, labels, names)
    if isinstance(samples, StoredSamples):
        data = replace(data, order=samples.order)
    return replace(data, scaling=scaling, fixed=fixed)


def _read_few(source: ClientSource, seed: int) -> tuple[Tree, Array]:
    """Return about `FEW` training samples and their targets, from random clients."""
    offsets = source.samples.offsets
    clients = len(offsets) - 1
    drawn = generator(seed, "few").choice(clients, min(clients, 64), replace=False)
    parts: list[tuple[Tree, Array]] = []
    for client in drawn.tolist():
        x, y = source.client(client)
        share = slice(0, max(2, FEW // len(drawn)))
        # A view instead of a copy would keep all samples of the client in memory.
        parts.append((map_tree(np.copy, take_rows(x, share)), y[share].copy()))
        if sum(len(y) for _, y in parts) >= FEW:
            break
    xs, ys = zip(*parts, strict=True)
    return join_trees(xs), np.concatenate(ys)


def _read_test(dataset: FederatedDataset, seed: int) -> tuple[Tree, Array]:
    """Read all test samples and their targets. Random generators are seeded, so each call returns the same samples."""
    rows = as_rows("test", dataset.test, dataset.input, dataset.target)
    if not len(rows):
        raise InputError("test", "it has no sample")
    generators = ItemGenerators.of(rows)
    if not are_rows_steady(rows, generators, seed):
        warn_unsteady(dataset.name, "test")
    with generators.seed_temporarily(seed, "test items"):
        x, y = rows.read(np.arange(len(rows)))
    x = as_inputs(x, f"dataset {dataset.name!r}: test")
    row = first_not_finite(x)
    if row is not None:
        raise not_finite(f"test row {row}")
    return x, as_targets(y)


def _check_owners(dataset: FederatedDataset, name: str, owners: Sequence[Any] | None, samples: int) -> None:
    if owners is None:
        return
    field = f"dataset {dataset.name!r}: {name}"
    if len(owners) != samples:
        problem = f"it names {format_count(len(owners), 'client')} for {format_count(samples, 'sample')}"
        raise InputError(field, problem, hint="pass one client per sample")
    for row, owner in enumerate(owners):
        if owner is None or owner != owner or owner == "":
            raise InputError(f"{field} row {row}", got=owner, expected="a client for every sample")


def _check_classes(dataset: FederatedDataset, classes: int) -> None:
    if dataset.classes not in (None, classes):
        raise InputError("classes", got=dataset.classes, expected=f"{classes}, as in the targets", hint="leave it out")


def _check_labels(dataset: FederatedDataset, y: Array) -> int:
    """Return the number of classes. Raise InputError if a training target is not a label."""
    y = as_labels(y)
    classes = dataset.classes or count_classes(y)
    row = find_unknown_label(y, classes)
    if row is not None:
        owner = "" if dataset.clients is None else f" of client {dataset.clients[row]!r}"
        raise InputError(f"row {row}{owner}", got=int(y[row]), expected=f"labels from 0 to {classes - 1}")
    return classes


def _with_client(error: ValueError, dataset: FederatedDataset, y: Array, how: DivisionSettings) -> ValueError:
    """Add the name of the first client with wrong targets to an error.

    Args:
        error: The error about the targets of all clients.
        dataset: The data set.
        y: The targets of all training samples.
        how: The settings, with the check `targets` that raises the error.
    """
    if how.targets is None or dataset.clients is None:
        return error
    owners = np.array([str(owner) for owner in dataset.clients])
    for owner in dict.fromkeys(owners.tolist()):
        targets = y[owners == owner]
        try:
            how.targets(targets, targets, dataset.classes or 0)
        except ValueError:
            return locate_error(error, f"client {owner!r}")
    return error


def _is_held(rows: Rows) -> bool:
    """Return True if samples are in memory: as arrays, or in an object of more than `HELD_BYTES` bytes."""
    if isinstance(rows, ArrayRows):
        return True
    contents = inspect_contents(rows)
    return contents.array_bytes + contents.copied_bytes > HELD_BYTES
