"""Samples by row, read when they are wanted: arrays, files of them, data sets of torch and of Hugging Face."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, IterableDataset

from fedraa.data.check import NUMBER_WORDS
from fedraa.data.sources.image_files import ImageFormat, image_array, plain_image
from fedraa.data.tree import Array, Tree, leaves, mapped, refuse_masked, take
from fedraa.reading import refuse_no_file

Index = npt.NDArray[np.int64]


class Rows(ABC):
    """Samples that can be read by row, wherever they are: a worker has a copy of this object, not of the samples.

    class Squares(fl.Rows):
        def __len__(self):
            return 10**9

        def read(self, rows):
            x = rows[:, None] / 1e9
            return x.astype("float32"), (x[:, 0] > 0.5).astype("int64")
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, rows: Index) -> tuple[Tree, Array]:
        """The samples x [b, ...] and labels y [b, ...] of these rows, as new arrays."""

    def labels(self) -> Array:
        """The labels of all rows; override where they can be had without the samples."""
        return self.read(np.arange(len(self)))[1]


@dataclass(frozen=True, eq=False)
class ArrayRows(Rows):
    """Arrays in memory."""

    x: Tree
    y: Array

    def __len__(self) -> int:
        return len(self.y)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        return take(self.x, rows), self.y.take(rows, axis=0)

    def labels(self) -> Array:
        return self.y


@dataclass(frozen=True)
class NpyRows(Rows):
    """Two `.npy` files, of which only the rows that are wanted are read, however large they are."""

    x: Path
    y: Path

    def __len__(self) -> int:
        return len(open_array(self.y))

    def read(self, rows: Index) -> tuple[Tree, Array]:
        # mapped for as long as it takes: pages that stay mapped count as the process's own
        rows = np.asarray(rows)
        return open_array(self.x)[rows], open_array(self.y)[rows]

    def labels(self) -> Array:
        return np.array(open_array(self.y))


@dataclass(frozen=True, eq=False)
class TorchRows(Rows):
    """Any map-style data set: `dataset[i]` is a pair of sample and label."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        rows, pairs = np.asarray(rows), []
        for row in rows.tolist():
            try:
                item = self.dataset[row]
            except Exception as error:  # the user's own
                raise ValueError(f"row {row}: {type(error).__name__}: {error}") from error
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise ValueError(f"row {row} is {_described(item)}; it must be a pair of sample and label")
            pairs.append(item)
        return stacked([x for x, _ in pairs], rows, "sample"), stacked([y for _, y in pairs], rows, "label")

    def labels(self) -> Array:
        known = getattr(self.dataset, "targets", None)
        if known is not None and len(known) == len(self) and not getattr(self.dataset, "target_transform", None):
            return np.asarray(known)
        return super().labels()


@dataclass(frozen=True, eq=False)
class HuggingFaceRows(Rows):
    """A table of Hugging Face's `datasets`: the columns of samples and of labels.

    `transformed` is True if a function of the user makes the columns from a row when it is read.
    """

    dataset: Any
    input: str
    target: str
    transformed: bool = False

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        rows = np.asarray(rows)
        table = self.dataset[rows.tolist()]
        return stacked(table[self.input], rows, "sample"), stacked(table[self.target], rows, "label")

    def labels(self) -> Array:
        if self.transformed:
            return super().labels()
        labels: Array = stacked(list(self.dataset[self.target]), np.arange(len(self)), "label")
        return labels


@dataclass(frozen=True, eq=False)
class ImageRows(Rows):
    """Image files, as float32 [channels, height, width] from 0 to 1."""

    paths: tuple[Path, ...]
    y: Array
    format: ImageFormat

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        rows = np.asarray(rows)
        return np.stack([self.format.read(self.paths[row]) for row in rows.tolist()]), self.y.take(rows)

    def labels(self) -> Array:
        return self.y


def as_rows(what: str, given: Any, input: str = "", target: str = "") -> Rows:
    """Return the rows of Rows, a pair of arrays (x, y), a Hugging Face table, or a map-style data set.

    ValueError names the samples by `what`, and the form that works.
    """
    if isinstance(given, Rows):
        return given
    if isinstance(given, tuple | list) and len(given) == 2 and not _are_two_samples(given):
        for name, part in zip(("x", "y"), given, strict=True):
            for leaf in leaves(part) if isinstance(part, dict | tuple) else [part]:
                refuse_masked(f"{what} {name}", leaf)
        x, y = (mapped(_array, part) if isinstance(part, dict | tuple) else _array(part) for part in given)
        if not all(leaf.ndim for leaf in (*leaves(x), *leaves(y))):
            kinds = " and ".join(type(part).__name__ for part in given)
            raise ValueError(f"{what} is a pair of {kinds}; it must be arrays (x, y) with a row for each sample")
        counts = {len(leaf) for leaf in leaves(x)} | {len(y)}
        if len(counts) > 1:
            raise ValueError(f"{what} has arrays of {', '.join(map(str, sorted(counts)))} rows; they must be as many")
        return ArrayRows(x, y)
    if wrong := _not_by_row(given):
        raise ValueError(f"{what} is {wrong}")
    if hasattr(given, "column_names") and hasattr(given, "features"):
        return _table_rows(what, given, input, target)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, dict | str | np.ndarray):
        return TorchRows(given)
    raise ValueError(f"{what} is {type(given).__name__}; it must be (x, y), Rows, or a data set with len and [i]")


def class_names(data: Any, target: str) -> list[str]:
    """Return the names of the classes in the order of their labels; nothing if the data set does not name them."""
    features = getattr(data, "features", None)
    column = features.get(target) if isinstance(features, dict) else None
    names = getattr(data, "classes", None) if column is None else getattr(column, "names", None)
    return list(map(str, names)) if isinstance(names, list | tuple) else []


def _are_two_samples(given: tuple[Any, ...] | list[Any]) -> bool:
    """Return True for a list of two samples, each with its label, rather than the arrays (x, y)."""
    if not isinstance(given, list):
        return False
    return all(isinstance(item, tuple) and len(item) == 2 and np.ndim(item[1]) == 0 for item in given)


def _not_by_row(given: Any) -> str | None:
    """Return a sentence for data of which no row can be read by its number; None for other data."""
    kind = type(given).__name__
    if isinstance(given, DataLoader):
        return f"a {kind}, which gives batches; it must be a data set with len and [i]: give loader.dataset"
    if isinstance(given, IterableDataset) or (hasattr(given, "column_names") and not hasattr(given, "__len__")):
        return (
            f"a stream ({kind}), of which no row can be read by its number; it must be a data set with len and [i]: "
            "load it without streaming, or give list(...) of its pairs"
        )
    if isinstance(given, Iterator):
        return f"a {kind}, which can be read only once; it must be a data set with len and [i]: give list(...) of it"
    if hasattr(given, "iloc"):
        return (
            f"a {kind}; it must be (x, y): give (frame.drop(columns='label').to_numpy('float32'), "
            "frame['label'].to_numpy()), or save it with to_csv and give the file"
        )
    if isinstance(given, dict) and {"train", "test"} & given.keys():
        splits = ", ".join(map(str, given))
        return f"a {kind} with the splits {splits}; it must be one of them: give train=data['train'], test=data['test']"
    return None


def _table_rows(what: str, table: Any, input: str, target: str) -> HuggingFaceRows:
    """Return the rows of a table of Hugging Face, in whatever format it gives them."""
    transformed = getattr(table, "format", {}).get("type") == "custom"
    if hasattr(table, "with_format") and not transformed:
        # Plain Python values are the same in all formats: torch, numpy, pandas, arrow, jax.
        table = table.with_format(None)
    columns = list(table.column_names)
    if transformed and len(table):
        columns = list(table[0])
    for column in (input, target):
        if column not in columns:
            raise ValueError(
                f"{what} has no column {column!r}; it has {', '.join(columns)}: give input and target, "
                f"as in input={columns[0]!r}, target={columns[-1]!r}"
            )
    return HuggingFaceRows(table, input, target, transformed)


def _described(item: Any) -> str:
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    if isinstance(item, dict):
        return f"a dict of {', '.join(map(str, item))}"
    return type(item).__name__


def stacked(items: Sequence[Any], rows: Index, what: str) -> Tree:
    """Return one array of the rows' items, dicts and tuples likewise; ValueError names the first row that differs."""
    if len(items) == 0:
        raise ValueError(f"there is no {what}")
    if isinstance(items[0], dict):
        for row, item in zip(rows.tolist(), items, strict=True):
            if not isinstance(item, dict) or item.keys() != items[0].keys():
                got = sorted(map(str, item)) if isinstance(item, dict) else type(item).__name__
                raise ValueError(
                    f"the {what} of row {row} has {got}, that of row {rows[0]} {sorted(map(str, items[0]))}; "
                    "they must be alike"
                )
        return {name: stacked([item[name] for item in items], rows, what) for name in items[0]}
    if isinstance(items[0], tuple):
        return tuple(stacked(list(parts), rows, what) for parts in zip(*items, strict=True))
    made = []
    for row, item in zip(rows.tolist(), items, strict=True):
        try:
            made.append(_array(item))
        except ValueError as error:
            raise ValueError(f"the {what} of row {row} cannot be read ({error})") from None
    for row, array in zip(rows.tolist(), made, strict=True):
        if array.dtype.kind not in "fiub":
            raise ValueError(f"the {what} of row {row} is {_no_number(array, what)}")
        if array.shape != made[0].shape:
            raise ValueError(
                f"the {what} of row {row} is {list(array.shape)}, that of row {rows[0]} {list(made[0].shape)}; "
                f"they must be alike{_remedy_for_shapes(items[0])}"
            )
    return np.stack(made)


def _remedy_for_shapes(item: Any) -> str:
    if hasattr(item, "convert"):
        return ": give images of one size and colour, as with image.convert('RGB').resize((64, 64))"
    return ""


def _no_number(array: Array, what: str) -> str:
    """Return the end of a sentence about an item that is no number."""
    if array.dtype.kind in "US":
        text = f"text ({str(array.flat[0])!r})" if array.size else "text"
        remedy = NUMBER_WORDS if what == "label" else "make tokens of it first"
        return f"{text}; it must be numbers: {remedy}"
    return f"{'missing' if array.dtype == object else array.dtype}; it must be numbers"


def _array(item: Any) -> Array:
    if isinstance(item, torch.Tensor):
        return np.asarray(item.detach().cpu().numpy())
    if hasattr(item, "convert") and hasattr(item, "size"):  # of PIL
        return image_array(plain_image(item))
    refuse_masked("", item)
    return np.asarray(item)


def open_array(path: Path) -> Array:
    """A `.npy` file, mapped: what is not looked at is not read. ValueError if it is none."""
    try:
        refuse_no_file(path)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read as an array ({said})") from None
    if not array.ndim:
        raise ValueError(f"{path} is one number; it must be an array of rows")
    return array
