"""A client's samples, read or made when it trains, and checked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from fedraa.data.check import Targets, refuse_nan_labels, remedy_for_labels
from fedraa.data.dataset import as_float32
from fedraa.data.partition.partitioner import Index, Partitioner
from fedraa.data.scaling import Scaling, apply_scaling
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.sources.rows import Rows, as_rows
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Array, Tree, first_not_finite, joined, leaves, mapped, refuse_masked, take


@dataclass(frozen=True, eq=False)
class Dealt:
    """Client n reads the rows `order[offsets[n]:offsets[n + 1]]`."""

    rows: Rows
    order: Index
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        mine = self.order[self.offsets[client] : self.offsets[client + 1]]
        ascending = np.argsort(mine, kind="stable")  # as files are read best
        x, y = self.rows.read(mine[ascending])
        back = np.argsort(ascending)
        return take(x, back), y[back]

    def row(self, client: int, place: int) -> int:
        """The number of a client's sample among all."""
        return int(self.order[self.offsets[client] + place])


@dataclass(frozen=True, eq=False)
class Made:
    """Client n's samples are what a function of n gives; `offsets` say how many they are."""

    function: Callable[[int], tuple[Any, Any]]
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        rows, size = as_rows("what it makes", self.function(client)), self.size(client)
        if len(rows) != size:
            raise ValueError(f"got {len(rows)} samples; sizes says {size}")
        x, y = rows.read(np.arange(size))
        return x, y

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    def row(self, client: int, place: int) -> int:
        return place


@dataclass(frozen=True, eq=False)
class Kept:
    """Client n has the `places[n]` of what `samples` give it."""

    samples: "Dealt | Made | Kept"
    places: tuple[Index, ...]
    offsets: Index

    def __call__(self, client: int) -> tuple[Tree, Array]:
        x, y = self.samples(client)
        return take(x, self.places[client]), y[self.places[client]]

    def row(self, client: int, place: int) -> int:
        return self.samples.row(client, int(self.places[client][place]))


ReadEpoch = Callable[[int], tuple[Tree, Array]]
"""Reads a client's samples x [n, ...] and targets y [n, ...] of an epoch of its task, counted from 0."""
Shard = tuple[Tree, Array, ReadEpoch | None]
"""A client's samples and targets of a task's first epoch; None if later epochs have the same."""


class Source(Protocol):
    """What training and evaluation read clients' samples from."""

    def client(self, client: int) -> tuple[Tree, Array]:
        """Read the samples of a client outside training: random ones are the same in every call."""

    def shard(self, client: int, turn: int) -> Shard:
        """Read the samples of a client's `turn`-th task."""

    def inputs(self, chosen: Index) -> Tree:
        """Read the inputs of these samples, ascending, numbered as the clients have them one after another."""

    def parts(self, sizes: Iterable[int]) -> Iterator[Tree]:
        """Read the inputs of all samples, client after client, in parts of these sizes."""


@dataclass(frozen=True, eq=False)
class ClientSource:
    """Where clients' samples come from, wherever they train: picklable, without the samples themselves.

    A client's features are scaled, then get the partitioner's skew, then the fixed transforms. `shapes` are those of
    one sample's arrays, `target_shape` that of its target, which `targets` checks; None: it is one of `classes` labels.

    Samples may be drawn at random when they are read. The random generators are seeded from `seed`, the client, its
    task and the epoch before each read. If a read has drawn from one of them, every epoch of the task reads again.
    Without, every epoch has the samples of the first, unless `unsteady` says that they differ all the same.
    """

    name: str
    samples: Dealt | Made | Kept
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
        """Return the fields only: each process finds the generators of its copy."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def generators(self) -> ItemGenerators:
        return ItemGenerators.of(self.samples)

    def client(self, client: int) -> tuple[Tree, Array]:
        """Read the samples x [n, ...] and targets y [n, ...] of a client; random ones are the same in every call.

        ValueError names the client, and the row if there is one.
        """
        return self._read_seeded(client, "fixed items", client)[:2]

    def shard(self, client: int, turn: int) -> Shard:
        """Read the samples of a client's `turn`-th task; ValueError names the client and the row if there is one."""
        x, y, drew = self._read_seeded(client, "items", client, turn, 0)
        return x, y, partial(self._read_epoch, client, turn) if drew or self.unsteady else None

    def _read_epoch(self, client: int, turn: int, epoch: int) -> tuple[Tree, Array]:
        return self._read_seeded(client, "items", client, turn, epoch)[:2]

    def _read_seeded(self, client: int, stream: str, *index: int) -> tuple[Tree, Array, bool]:
        """Return the client's samples, its targets, and True if reading them has drawn random numbers."""
        try:
            with self.generators.seeded(self.seed, stream, *index) as draws:
                x, y = self.read(client)
        except Exception as error:
            said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise ValueError(f"dataset {self.name!r}: client {client}: {said}") from error
        return self.fixed.all(x), y, draws.drew

    def inputs(self, chosen: Index) -> Tree:
        """Read the inputs of these samples, ascending, numbered as the clients have them one after another."""
        if isinstance(self.samples, Dealt) and not self.partitioner.skews:
            with self.generators.seeded(self.seed, "statistics items"):
                x, _ = self.samples.rows.read(self.samples.order[chosen])
            return self.fixed.all(apply_scaling(self.scaling, as_inputs(x)))
        offsets = self.samples.offsets
        owners = np.searchsorted(offsets, chosen, side="right") - 1
        places = np.split(chosen - offsets[owners], np.flatnonzero(np.diff(owners)) + 1)
        pairs = zip(np.unique(owners).tolist(), places, strict=True)
        return joined([take(self.client(client)[0], some) for client, some in pairs])

    def parts(self, sizes: Iterable[int]) -> Iterator[Tree]:
        """Read the inputs of all samples, client after client, in parts of these sizes.

        No more than one part and one client's samples are in memory at a time.
        """
        held: list[Tree] = []
        have, clients = 0, iter(range(len(self.samples.offsets) - 1))
        for size in sizes:
            while have < size:
                held.append(self.client(next(clients))[0])
                have += len(leaves(held[-1])[0])
            whole = joined(held)
            yield take(whole, slice(size))
            held, have = [mapped(np.copy, take(whole, slice(size, None)))], have - size

    def read(self, client: int) -> tuple[Tree, Array]:
        x, y = self.samples(client)
        x, y = as_inputs(x), as_targets(y)
        if (shapes := tuple(part.shape[1:] for part in leaves(x))) != self.shapes:
            raise ValueError(f"samples are {_listed(shapes)}, but others {_listed(self.shapes)}; they must be alike")
        wanted = int(self.samples.offsets[client + 1] - self.samples.offsets[client])
        if len(y) != wanted or any(len(part) != wanted for part in leaves(x)):
            raise ValueError(f"got {len(y)} samples; there must be {wanted}")
        y = self._checked(client, y)
        if not self.allow_nan and (place := first_not_finite(x)) is not None:
            raise ValueError(f"row {self.samples.row(client, place)} holds NaN or an infinity")
        x = apply_scaling(self.scaling, x)
        if self.partitioner.skews:
            x = self.partitioner.skew(client, len(self.samples.offsets) - 1, x)
        return x, y

    def _checked(self, client: int, y: Array) -> Array:
        """The client's targets, as they must be."""
        if self.targets is not None:
            if y.shape[1:] != self.target_shape:
                raise ValueError(
                    f"targets are {list(y.shape[1:])}, but others {list(self.target_shape)}; they must be alike"
                )
            return self.targets(y, y, self.classes)[0]
        if (place := outside(as_labels(y), self.classes)) is not None:
            raise ValueError(
                f"row {self.samples.row(client, place)} has label {y[place]}; labels count from 0 to {self.classes - 1}"
            )
        return y


def outside(y: Array, classes: int) -> int | None:
    """The first row with a label [n] that is no class; None if there is none."""
    found = np.flatnonzero((y >= classes) | (y < 0))
    return int(found[0]) if found.size else None


def as_inputs(x: Tree, name: str = "") -> Tree:
    """Return each array as float32, integers but bytes as int64; contiguous, without a copy if it is so already.

    Of one input only integers `[n, length]` are tokens, int64. Among several inputs a mask stays boolean.
    With a `name` a warning says which feature loses its digits.
    """
    if isinstance(x, dict | tuple):
        return mapped(lambda part: _as_input(part, name, tokens=True, mask=True), x)
    return _as_input(x, name, tokens=np.ndim(x) == 2)


def _as_input(x: Any, name: str, *, tokens: bool, mask: bool = False) -> Array:
    refuse_masked("the samples'", x)
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"samples hold {array.dtype}; they must be numbers")
    if mask and array.dtype.kind == "b":
        return array
    if tokens and array.dtype.kind in "iu" and array.dtype != np.uint8:
        return np.require(array, np.int64, ["C", "W"])
    return as_float32(array, name)


def as_labels(y: Array) -> Array:
    """Itself; ValueError unless it is one class per sample."""
    refuse_nan_labels("the labels'", y)
    if y.ndim != 1 or y.dtype.kind != "i":
        raise ValueError(
            f"labels are {y.dtype} of shape {y.shape}; they must be integers of shape [samples]{remedy_for_labels(y)}"
        )
    return y


def as_targets(y: Any) -> Array:
    """Int64 for integers, else float32; contiguous."""
    refuse_masked("the labels'", y)
    array = np.asarray(y)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"labels hold {array.dtype}; they must be numbers{remedy_for_labels(array)}")
    with np.errstate(over="ignore"):
        return np.require(array, np.float32 if array.dtype.kind == "f" else np.int64, ["C", "W"])


def _listed(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)
