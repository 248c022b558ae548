"""Sources that read or generate the samples of a client, and check them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from fedraa.data.check import Targets, hint_for_labels, refuse_nan_labels
from fedraa.data.dataset import as_float32, not_finite, training_type
from fedraa.data.partition.partitioner import Partitioner
from fedraa.data.scaling import Scaling, apply_scaling
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.sources.rows import Rows, as_rows
from fedraa.data.transforms import Transforms
from fedraa.data.tree import (
    Array,
    Tree,
    first_not_finite,
    format_shapes,
    join_trees,
    list_leaves,
    map_tree,
    refuse_masked,
    sample_shapes,
    take_rows,
)
from fedraa.errors import InputError, locate_error
from fedraa.messages import Index


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples that clients read when they train.

    Client n reads the rows `order[offsets[n]:offsets[n + 1]]` of `rows`.
    """

    rows: Rows
    order: Index
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        mine = self.order[self.offsets[client] : self.offsets[client + 1]]
        # Reading from files is fastest in ascending order.
        ascending = np.argsort(mine, kind="stable")
        x, y = self.rows.read(mine[ascending])
        back = np.argsort(ascending)
        return take_rows(x, back), y[back]

    def row(self, client: int, place: int) -> int:
        """Return the row that the client's sample number `place` (from 0) has in the whole data set."""
        return int(self.order[self.offsets[client] + place])


@dataclass(frozen=True, eq=False)
class GeneratedSamples:
    """Samples that a user's function generates for each client.

    Client n has `offsets[n + 1] - offsets[n]` samples.
    """

    function: Callable[[int], tuple[Any, Any]]
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        rows = as_rows("train", self.function(client))
        size = self.size(client)
        if len(rows) != size:
            raise InputError("samples", got=len(rows), expected=f"{size}, as `sizes` states")
        x, y = rows.read(np.arange(size))
        return x, y

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def row(self, client: int, place: int) -> int:
        return place


@dataclass(frozen=True, eq=False)
class TrainingSubset:
    """The samples that remain for training after a validation split.

    `places[n]` has the indices of the samples that client n keeps. Index 0 is the client's first sample before the
    split.
    """

    samples: "StoredSamples | GeneratedSamples | TrainingSubset"
    places: tuple[Index, ...]
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        x, y = self.samples(client)
        return take_rows(x, self.places[client]), y[self.places[client]]

    def row(self, client: int, place: int) -> int:
        return self.samples.row(client, int(self.places[client][place]))


ReadEpoch = Callable[[int], tuple[Tree, Array]]
"""A function that returns a client's inputs x [n, ...] and targets y [n, ...] for an epoch of a task (from 0)."""
Shard = tuple[Tree, Array, ReadEpoch | None]
"""A client's inputs and targets for the first epoch of a task, and the function that reads later epochs.

The function is None if all epochs have the same samples.
"""


class Source(Protocol):
    """The interface through which training and evaluation read clients' samples."""

    def client(self, client: int) -> tuple[Tree, Array]:
        """Return a client's samples for purposes other than training. Random samples are the same in every call."""

    def shard(self, client: int, turn: int) -> Shard:
        """Return the samples for a client's task number `turn` (from 0)."""

    def inputs(self, chosen: Index) -> Tree:
        """Return the inputs of some samples. `chosen` has their ascending indices in client order."""

    def parts(self, sizes: Iterable[int]) -> Iterator[Tree]:
        """Yield the inputs of all samples in client order, in parts of these sizes."""


@dataclass(frozen=True, eq=False)
class ClientSource:
    """A source from which any process can read clients' samples. It is pickled without samples.

    Inputs are first scaled, then changed by the partitioner, and then changed by the fixed transforms. Before each
    read, all random generators are seeded by the run, client, task and epoch. Every epoch reads the samples again if a
    read draws random numbers or `unsteady` is True.

    Attributes:
        name: Name of the data set.
        samples: The samples, before they are scaled and transformed.
        partitioner: The partitioner, which may change the inputs of a client (`skew`).
        fixed: The transforms that are not random.
        classes: Number of classes.
        shapes: The shapes of the input arrays of one sample.
        target_shape: The shape of the target of one sample.
        targets: A function that checks and converts the targets. None means labels of classes.
        allow_nan: True if samples may contain NaN or infinite values.
        seed: The seed of the run.
        unsteady: True if two reads with the same random seeds can return different samples.
        scaling: The scaling of the inputs.
    """

    name: str
    samples: StoredSamples | GeneratedSamples | TrainingSubset
    partitioner: Partitioner
    fixed: Transforms
    classes: int
    shapes: tuple[tuple[int, ...], ...]
    target_shape: tuple[int, ...] = ()
    targets: Targets | None = None
    allow_nan: bool = False
    seed: int = 0
    unsteady: bool = False
    scaling: Scaling = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the cached generators, because another process has its own generators."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def generators(self) -> ItemGenerators:
        return ItemGenerators.of(self.samples)

    def client(self, client: int) -> tuple[Tree, Array]:
        """Return the inputs x [n, ...] and targets y [n, ...] of a client.

        Random samples are the same in every call. Raises InputError if the samples are malformed. The error names the
        client and, if possible, the row.
        """
        return self._read_seeded(client, "fixed items", client)[:2]

    def shard(self, client: int, turn: int) -> Shard:
        """Return the samples for a client's task number `turn` (from 0).

        Raises InputError if the samples are malformed.
        """
        x, y, drew = self._read_seeded(client, "items", client, turn, 0)
        if drew or self.unsteady:
            return x, y, partial(self._read_epoch, client, turn)
        return x, y, None

    def _read_epoch(self, client: int, turn: int, epoch: int) -> tuple[Tree, Array]:
        return self._read_seeded(client, "items", client, turn, epoch)[:2]

    def _read_seeded(self, client: int, stream: str, *index: int) -> tuple[Tree, Array, bool]:
        """Seed all random generators and read the samples of a client.

        Args:
            client: The client.
            stream: The name of the random stream.
            index: The numbers that select a seed in the stream.

        Returns:
            The inputs, the targets, and True if the read drew random numbers.
        """
        try:
            with self.generators.seed_temporarily(self.seed, stream, *index) as draws:
                x, y = self.read(client)
        # The user's data set can raise any exception.
        except Exception as error:
            raise locate_error(error, f"dataset {self.name!r}: client {client}") from error
        return self.fixed.all(x), y, draws.drew

    def inputs(self, chosen: Index) -> Tree:
        """Return the inputs of some samples.

        `chosen` has their ascending indices in client order: the samples of client 0 first, then of client 1.
        """
        if isinstance(self.samples, StoredSamples) and not self.partitioner.skews:
            with self.generators.seed_temporarily(self.seed, "statistics items"):
                x, _ = self.samples.rows.read(self.samples.order[chosen])
            return self.fixed.all(apply_scaling(self.scaling, as_inputs(x)))
        offsets = self.samples.offsets
        owners = np.searchsorted(offsets, chosen, side="right") - 1
        places = np.split(chosen - offsets[owners], np.flatnonzero(np.diff(owners)) + 1)
        pairs = zip(np.unique(owners).tolist(), places, strict=True)
        return join_trees([take_rows(self.client(client)[0], rows) for client, rows in pairs])

    def parts(self, sizes: Iterable[int]) -> Iterator[Tree]:
        """Yield the inputs of all samples in client order, in parts of these sizes.

        At most one part and one client's samples are in memory.
        """
        held: list[Tree] = []
        rows = 0
        clients = iter(range(len(self.samples.offsets) - 1))
        for size in sizes:
            while rows < size:
                held.append(self.client(next(clients))[0])
                rows += len(list_leaves(held[-1])[0])
            whole = join_trees(held)
            yield take_rows(whole, slice(size))
            held = [map_tree(np.copy, take_rows(whole, slice(size, None)))]
            rows -= size

    def read(self, client: int) -> tuple[Tree, Array]:
        """Read, check and scale a client's samples. The fixed transforms are not applied yet."""
        x, y = self.samples(client)
        x, y = as_inputs(x), as_targets(y)
        shapes = sample_shapes(x)
        if shapes != self.shapes:
            expected = f"{format_shapes(self.shapes)}, as other clients have"
            raise InputError("samples", f"they have the shape {format_shapes(shapes)}", expected=expected)
        size = int(self.samples.offsets[client + 1] - self.samples.offsets[client])
        if len(y) != size or any(len(part) != size for part in list_leaves(x)):
            raise InputError("samples", got=len(y), expected=f"{size}, as the partition states")
        y = self._convert_targets(client, y)
        if not self.allow_nan:
            place = first_not_finite(x)
            if place is not None:
                raise not_finite(f"row {self.samples.row(client, place)}")
        x = apply_scaling(self.scaling, x)
        if self.partitioner.skews:
            x = self.partitioner.skew(client, len(self.samples.offsets) - 1, x)
        return x, y

    def _convert_targets(self, client: int, y: Array) -> Array:
        """Check a client's targets, and return them in the type for training."""
        if self.targets is not None:
            if y.shape[1:] != self.target_shape:
                expected = f"the shape {list(self.target_shape)}, as other clients have"
                raise InputError("targets", f"they have the shape {list(y.shape[1:])}", expected=expected)
            return self.targets(y, y, self.classes)[0]
        place = find_unknown_label(as_labels(y), self.classes)
        if place is not None:
            row = self.samples.row(client, place)
            raise InputError(f"row {row}", got=int(y[place]), expected=f"labels from 0 to {self.classes - 1}")
        return y


def find_unknown_label(y: Array, classes: int) -> int | None:
    """Return the first row with a label outside of 0 to `classes - 1`, or None."""
    rows = np.flatnonzero((y >= classes) | (y < 0))
    if not rows.size:
        return None
    return int(rows[0])


def as_inputs(x: Tree, name: str = "") -> Tree:
    """Return the inputs as contiguous arrays with their types for training, without unnecessary copies.

    Args:
        x: The inputs.
        name: The name of x in a warning about lost significant digits. Without a name there is no warning.
    """
    if isinstance(x, dict | tuple):
        return map_tree(lambda part: _as_input(part, name, several=True), x)
    return _as_input(x, name, several=False)


def _as_input(x: Any, name: str, *, several: bool) -> Array:
    refuse_masked("samples", x)
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise InputError("samples", got=array, expected="real numbers")
    kind = training_type(array, several=several)
    if kind is np.float32:
        return as_float32(array, name)
    return np.require(array, kind, ["C", "W"])


def as_labels(y: Array, name: str = "labels") -> Array:
    """Return the labels. Raise InputError about `name` if they are not one integer per sample."""
    refuse_nan_labels(name, y)
    if y.ndim != 1 or y.dtype.kind != "i":
        raise InputError(name, got=y, expected="integers of shape [samples]", hint=hint_for_labels(y))
    return y


def as_targets(y: Any) -> Array:
    """Return targets as a contiguous array: floats as float32, integers and booleans as int64."""
    refuse_masked("labels", y)
    array = np.asarray(y)
    if array.dtype.kind not in "fiub":
        raise InputError("labels", got=array, expected="real numbers", hint=hint_for_labels(array))
    with np.errstate(over="ignore"):
        if array.dtype.kind == "f":
            return np.require(array, np.float32, ["C", "W"])
        return np.require(array, np.int64, ["C", "W"])
