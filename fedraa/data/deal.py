"""A data set dealt to clients, whatever it is: their samples as the run will train on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedraa.components.calls import one_line
from fedraa.data.check import Targets, as_dataset
from fedraa.data.dataset import Dataset
from fedraa.data.federated import Federated, federate
from fedraa.data.held_back import hold_back
from fedraa.data.measured import read_measured
from fedraa.data.partition.divide import divide
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.partitioner import Partition, Partitioner
from fedraa.data.scaling import apply_scaling, apply_scaling_in_place, measure_scaling
from fedraa.data.sources.clients import ClientSource, Dealt, Made, as_inputs, as_labels, as_targets, outside
from fedraa.data.sources.contents import inspect_contents
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.sources.random_items import are_rows_steady, is_steady, read_whole, warn_unsteady
from fedraa.data.sources.rows import ArrayRows, Rows, as_rows
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Array, Tree, first_not_finite, joined, leaves, mapped, take
from fedraa.rng import generator

FEW = 1024  # training samples that are read before the start, for the model's shapes and its norms' statistics
FITTED = 8192  # of those in memory, an even random share, that transforms are fitted to
# Larger data sets are read into arrays once, which processes share, unless their items are random.
HELD_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Dealing:
    """How it is dealt. With `allow_nan` training samples need not be finite.

    `targets` checks what is learnt; None: labels, one of several classes per sample. With a share for `validation` that
    much of each client's training samples takes the place of the test samples. With `standardise` inputs are scaled by
    the statistics of the training samples, those that `validation` takes included.
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
        """Return True if inputs are scaled: not if a transform has values of the user's for that."""
        return self.standardise and not any(part.scales for part in self.transforms.parts)

    def labels(self, y: Array) -> Array:
        """What samples with these targets are dealt by: nothing [n, 0] where they are no classes."""
        return y if self.targets is None else np.zeros((len(y), 0), np.int64)


def deal(given: Dataset | FederatedDataset, how: Dealing) -> Federated:
    """The clients' samples; ValueError with one sentence for what is wrong with them, by client and row."""
    data = _dealt(given, how)
    return hold_back(data, how.validation, how.seed) if how.validation else data


def _dealt(given: Dataset | FederatedDataset, how: Dealing) -> Federated:
    if isinstance(given, Dataset):
        return _of_arrays(given, how)
    try:
        return _of_clients(given, how)
    except ValueError as error:
        said = str(error)
        if said.startswith(("dataset ", "partition: ", "clients: ", "transforms: ")):
            raise
        raise ValueError(f"dataset {given.name!r}: {said}") from error
    except Exception as error:  # the code of a data set raises anything
        raise ValueError(f"dataset {given.name!r}: {type(error).__name__}: {one_line(error)}") from error


def _of_arrays(dataset: Dataset, how: Dealing, names: tuple[str, ...] | None = None) -> Federated:
    train, test = how.labels(dataset.y_train), how.labels(dataset.y_test)
    shards = divide(how.partitioner, train, test, how.clients, seed=how.seed)
    if not how.allow_nan:
        _refuse_nan(dataset, shards, names)
    data = replace(federate(dataset, shards), names=names)
    if how.scales:
        data = _scaled(data, dataset)
    if how.targets is not None:
        data = replace(data, labels=None)
    if how.partitioner.skews:
        pieces = [how.partitioner.skew(n, how.clients, data.client(n)[0]) for n in range(how.clients)]
        data = replace(data, dataset=replace(data.dataset, x_train=joined(pieces)))
    fixed = how.transforms.fixed
    if fixed:
        count = len(dataset.y_train)
        seen = np.sort(generator(how.seed, "few").choice(count, min(count, FITTED), replace=False))
        fixed = fixed.fitted(take(data.dataset.x_train, seen))
        x_train, x_test = fixed.all(data.dataset.x_train), fixed.all(data.dataset.x_test)
        data = replace(data, dataset=replace(data.dataset, x_train=x_train, x_test=x_test), fixed=fixed)
    return data


def _scaled(data: Federated, dataset: Dataset) -> Federated:
    """Scale the samples of `data`, which has its own copy of the training samples of `dataset`."""
    scaling = measure_scaling(dataset.x_train)
    apply_scaling_in_place(scaling, data.x_train)
    x_test = apply_scaling(scaling, dataset.x_test)
    return replace(data, dataset=replace(data.dataset, x_test=x_test), scaling=scaling)


def _refuse_nan(dataset: Dataset, shards: Partition, names: tuple[str, ...] | None) -> None:
    row = first_not_finite(dataset.x_train)
    if row is None:
        return
    place, owner = np.flatnonzero(shards.train.order == row), ""
    if place.size:
        client = int(np.searchsorted(shards.train.offsets, place[0], side="right")) - 1
        owner = f", of client {repr(names[client]) if names else client},"
    raise ValueError(
        f"dataset {dataset.name!r}: x_train row {row}{owner} holds NaN, an infinity or a value beyond float32; all "
        "must be finite, or choose allow_nan"
    )


def _of_clients(given: FederatedDataset, how: Dealing) -> Federated:
    x_test, y_test = _test(given, how.seed)
    how = replace(how, partitioner=how.partitioner.bound(given.clients, given.test_clients))
    if given.made:
        return _made(given, x_test, y_test, how)
    rows = as_rows("train", given.train, given.input, given.target)
    if not len(rows):
        raise ValueError("train has no sample")
    generators = ItemGenerators.of(rows)
    steady = are_rows_steady(rows, generators, how.seed)
    if not steady:
        warn_unsteady(given.name, "train")
    with generators.seeded(how.seed, "labels"):
        y, classes = as_targets(rows.labels()), given.classes or 0
    _check_owners("clients", given.clients, len(y))
    _check_owners("test_clients", given.test_clients, len(y_test))
    if how.targets is None:
        classes = classes or _classes(y)
        _check_labels(given, y, classes)
    names = _names(given, how)
    whole = read_whole(rows, generators, how.seed) if steady and _is_held(rows) else None
    if whole is not None:
        x, y = whole
        try:
            dataset = as_dataset(Dataset(given.name, x, as_targets(y), x_test, y_test, classes), how.targets)
        except ValueError as error:
            raise ValueError(f"{error}{_whose(given, as_targets(y), how)}") from None
        _check_classes(given, dataset.classes)
        return _of_arrays(dataset, how, names)
    if how.targets is not None:
        try:
            y, y_test, classes = how.targets(y, y_test, classes)
        except ValueError as error:
            raise ValueError(f"{error}{_whose(given, y, how)}") from None
        _check_classes(given, classes)
    shards = divide(how.partitioner, how.labels(y), how.labels(y_test), how.clients, seed=how.seed)
    order, offsets = shards.train
    labels = y[order] if how.targets is None else None
    dealt = Dealt(rows, order, offsets)
    return _read(given, dealt, labels, shards.test, x_test, y_test, classes, names, how, unsteady=not steady)


def _made(given: FederatedDataset, x_test: Tree, y_test: Array, how: Dealing) -> Federated:
    sizes = np.asarray(given.sizes)
    if sizes.dtype.kind not in "iu" or sizes.ndim > 1:
        raise ValueError(f"sizes is {sizes.dtype} {list(sizes.shape)}; it must be one whole number, or one per client")
    sizes = np.full(how.clients, sizes) if sizes.ndim == 0 else sizes.astype(np.int64)
    if len(sizes) != how.clients:
        raise ValueError(f"clients: the data have {len(sizes)}, not {how.clients}; give --clients {len(sizes)}")
    if (none := np.flatnonzero(sizes < 1)).size:
        raise ValueError(f"client {none[0]} has {sizes[none[0]]} samples; every client must have one at least")
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    nobody = np.zeros(0, np.int64)
    test = Iid().deal(nobody, np.zeros(len(y_test), np.int64), how.clients, np.random.default_rng(how.seed)).test
    classes = given.classes or 0
    if how.targets is not None:
        y_test, _, classes = how.targets(y_test, y_test, classes)
        _check_classes(given, classes)
    if given.classes is None and y_test.dtype.kind == "i":
        raise ValueError("train is a function; give classes, how many there are")
    made = Made(given.train, offsets)
    return _read(given, made, None, test, x_test, y_test, classes, None, how)


def _read(
    given: FederatedDataset,
    samples: Dealt | Made,
    labels: Array | None,
    test: Any,
    x_test: Tree,
    y_test: Array,
    classes: int,
    names: tuple[str, ...] | None,
    how: Dealing,
    *,
    unsteady: bool = False,
) -> Federated:
    """Let clients read what they train on, and read a few samples here and now."""
    shapes = tuple(part.shape[1:] for part in leaves(x_test))
    nothing = Transforms((), how.seed)
    plain = ClientSource(
        given.name,
        samples,
        how.partitioner,
        nothing,
        classes,
        shapes,
        y_test.shape[1:],
        how.targets,
        how.allow_nan,
        how.seed,
        unsteady,
    )
    if isinstance(samples, Made) and not is_steady(lambda: plain.client(0), plain.generators, how.seed):
        warn_unsteady(given.name, "train")
        plain = replace(plain, unsteady=True)
    name, scaling = f"dataset {given.name!r}: train", None
    if how.scales:
        scaling = measure_scaling(read_measured(samples, how.seed, name))
    plain = replace(plain, scaling=scaling)
    x, y = _few(plain, how.seed)
    if not how.scales:
        with plain.generators.seeded(how.seed, "fixed items", 0):
            as_inputs(samples(0)[0], name)
    x_test = apply_scaling(scaling, x_test)
    fixed = how.transforms.fixed.fitted(x).fixed if how.transforms.fixed else nothing
    source = replace(plain, fixed=fixed)
    dataset = Dataset(given.name, fixed.all(x), y, fixed.all(x_test), y_test, classes)
    order = samples.order if isinstance(samples, Dealt) else None
    data = Federated(dataset, samples.offsets, test.order, test.offsets, source, labels, names, order)
    return replace(data, scaling=scaling, fixed=fixed)


def _few(source: ClientSource, seed: int) -> tuple[Tree, Array]:
    """About `FEW` training samples, of clients drawn by chance until there are enough."""
    offsets = source.samples.offsets
    clients = len(offsets) - 1
    drawn = generator(seed, "few").choice(clients, min(clients, 64), replace=False)
    parts: list[tuple[Tree, Array]] = []
    for client in drawn.tolist():
        x, y = source.client(client)
        share = slice(0, max(2, FEW // len(drawn)))
        parts.append((mapped(np.copy, take(x, share)), y[share].copy()))  # or all that it has would stay
        if sum(len(y) for _, y in parts) >= FEW:
            break
    xs, ys = zip(*parts, strict=True)
    return joined(xs), np.concatenate(ys)


def _test(given: FederatedDataset, seed: int) -> tuple[Tree, Array]:
    """Read the test samples; random ones are drawn from the seed."""
    rows = as_rows("test", given.test, given.input, given.target)
    if not len(rows):
        raise ValueError("test has no sample")
    generators = ItemGenerators.of(rows)
    if not are_rows_steady(rows, generators, seed):
        warn_unsteady(given.name, "test")
    with generators.seeded(seed, "test items"):
        x, y = rows.read(np.arange(len(rows)))
    x = as_inputs(x, f"dataset {given.name!r}: test")
    if (row := first_not_finite(x)) is not None:
        raise ValueError(f"test row {row} holds NaN or an infinity; all must be finite")
    return x, as_targets(y)


def _check_owners(what: str, owners: Sequence[Any] | None, samples: int) -> None:
    if owners is None:
        return
    if len(owners) != samples:
        raise ValueError(f"{what} names {len(owners)} owners of {samples} samples; give one for each")
    for row, owner in enumerate(owners):
        if owner is None or owner != owner or owner == "":
            raise ValueError(f"{what} row {row} has no owner; every sample must have one")


def _classes(y: Array) -> int:
    return int(y.max()) + 1 if y.dtype.kind in "iu" and y.size else 1


def _check_classes(given: FederatedDataset, classes: int) -> None:
    if given.classes not in (None, classes):
        raise ValueError(f"it has {given.classes} classes, and what is learnt has {classes}; leave classes out")


def _check_labels(given: FederatedDataset, y: Array, classes: int) -> None:
    as_labels(y)
    if (row := outside(y, classes)) is not None:
        owner = "" if given.clients is None else f", of client {given.clients[row]!r},"
        raise ValueError(f"row {row}{owner} has label {y[row]}; labels count from 0 to {classes - 1}")


def _whose(given: FederatedDataset, y: Array, how: Dealing) -> str:
    """The first client whose targets alone are refused, as the end of a sentence; nothing where there is none."""
    if how.targets is None or given.clients is None:
        return ""
    owners = np.array([str(owner) for owner in given.clients])
    for owner in dict.fromkeys(owners.tolist()):
        mine = y[owners == owner]
        try:
            how.targets(mine, mine, given.classes or 0)
        except ValueError:
            return f"; that is of client {owner!r}"
    return ""


def _names(given: FederatedDataset, how: Dealing) -> tuple[str, ...] | None:
    if given.clients is None or not hasattr(how.partitioner, "owners"):
        return None
    ids = np.unique(np.asarray(given.clients))
    return tuple(map(str, ids.tolist())) if len(ids) == how.clients else None


def _is_held(rows: Rows) -> bool:
    """Return True if the samples are in memory, in this process or in every process that the rows are sent to."""
    if isinstance(rows, ArrayRows):
        return True
    contents = inspect_contents(rows)
    return contents.array_bytes + contents.copied_bytes > HELD_BYTES
