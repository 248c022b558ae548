"""Samples that can be read row by row: arrays, files, and data sets of torch and Hugging Face."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from fedraa.data.check import NUMBER_WORDS
from fedraa.data.sources.image_files import ImageFormat, image_array, plain_image
from fedraa.data.tree import Array, Tree, list_leaves, map_tree, refuse_masked, take_rows, tensor_array
from fedraa.errors import InputError, locate_error, one_line, read_failure
from fedraa.messages import Index
from fedraa.reading.regular_files import refuse_irregular_file

PAIR_HINT = "give arrays as one pair, as in train=(x, y), or the pair of each client to FederatedDataset.of_clients"


class Rows(ABC):
    """Samples that can be read by row.

    Each worker gets a copy of this object. Example:

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
        """Return the inputs x [b, ...] and labels y [b, ...] of some rows, as new arrays."""

    def labels(self) -> Array:
        """Return the labels of all rows. Override it if labels can be read without the inputs."""
        return self.read(np.arange(len(self)))[1]


@dataclass(frozen=True, eq=False)
class ArrayRows(Rows):
    """Rows of arrays in memory."""

    x: Tree
    y: Array

    def __len__(self) -> int:
        return len(self.y)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        return take_rows(self.x, rows), self.y.take(rows, axis=0)

    def labels(self) -> Array:
        return self.y


@dataclass(frozen=True)
class NpyRows(Rows):
    """Rows of two `.npy` files, which may be larger than the memory."""

    x: Path
    y: Path

    def __len__(self) -> int:
        return len(open_array(self.y))

    def read(self, rows: Index) -> tuple[Tree, Array]:
        # Mapped pages count as memory of the process, so the files are mapped only during a read.
        rows = np.asarray(rows)
        return open_array(self.x)[rows], open_array(self.y)[rows]

    def labels(self) -> Array:
        return np.array(open_array(self.y))


@dataclass(frozen=True, eq=False)
class TorchRows(Rows):
    """Rows of a map-style data set, in which `dataset[i]` is a pair of sample and label."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        rows = np.asarray(rows)
        pairs = []
        for row in rows.tolist():
            try:
                item = self.dataset[row]
            # The user's data set can raise any exception.
            except Exception as error:
                raise InputError(f"row {row}", f"{type(error).__name__}: {one_line(error)}") from error
            if not isinstance(item, tuple | list) or len(item) != 2:
                hint = PAIR_HINT if isinstance(self.dataset, tuple | list) else ""
                raise InputError(f"row {row}", got=item, expected="a pair of sample and label", hint=hint)
            pairs.append(item)
        return stack_items([x for x, _ in pairs], rows, "sample"), stack_items([y for _, y in pairs], rows, "label")

    def labels(self) -> Array:
        known = getattr(self.dataset, "targets", None)
        if known is not None and len(known) == len(self) and not getattr(self.dataset, "target_transform", None):
            return np.asarray(known)
        return super().labels()


@dataclass(frozen=True, eq=False)
class HuggingFaceRows(Rows):
    """Rows of a table of Hugging Face's `datasets`.

    Attributes:
        dataset: The table.
        input: The column of samples.
        target: The column of labels.
        transformed: True if a user's function computes these columns in each read.
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
        return stack_items(table[self.input], rows, "sample"), stack_items(table[self.target], rows, "label")

    def labels(self) -> Array:
        if self.transformed:
            return super().labels()
        labels: Array = stack_items(list(self.dataset[self.target]), np.arange(len(self)), "label")
        return labels


@dataclass(frozen=True, eq=False)
class ImageRows(Rows):
    """Rows of image files, read as float32 [channels, height, width] from 0 to 1."""

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


def as_rows(field: str, data: Any, input: str = "", target: str = "") -> Rows:
    """Return samples in any supported form as Rows.

    Args:
        field: The field that error messages name.
        data: Rows, a pair of arrays (x, y), a Hugging Face table, or a map-style data set.
        input: The column of samples in a table.
        target: The column of labels in a table.

    Raises:
        InputError: The samples have another form.
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and not _are_two_samples(data):
        for name, part in zip(("x", "y"), data, strict=True):
            for leaf in list_leaves(part) if isinstance(part, dict | tuple) else [part]:
                refuse_masked(f"{field} {name}", leaf)
        x, y = map(_as_arrays, data)
        if not all(leaf.ndim for leaf in (*list_leaves(x), *list_leaves(y))):
            raise InputError(field, got=data, expected="arrays (x, y) with a row for each sample")
        counts = sorted({len(leaf) for leaf in list_leaves(x)} | {len(y)})
        if len(counts) > 1:
            problem = f"its arrays have {', '.join(map(str, counts))} rows"
            raise InputError(field, problem, expected="the same number of rows")
        return ArrayRows(x, y)
    _refuse_not_by_row(field, data)
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _table_rows(field, data, input, target)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, dict | str | np.ndarray):
        return TorchRows(data)
    expected = "a pair (x, y), Rows, or a data set with len() and [i]"
    raise InputError(field, got=data, expected=expected, hint=PAIR_HINT)


def class_names(data: Any, target: str) -> list[str]:
    """Return the names of a data set's classes in the order of their labels. Without names, the list is empty."""
    names = getattr(data, "classes", None)
    features = getattr(data, "features", None)
    if isinstance(features, dict) and features.get(target) is not None:
        names = getattr(features[target], "names", None)
    if not isinstance(names, list | tuple):
        return []
    return list(map(str, names))


def _are_two_samples(data: tuple[Any, ...] | list[Any]) -> bool:
    """Return True for a list of two pairs (sample, label), False for a pair of arrays (x, y)."""
    if not isinstance(data, list):
        return False
    return all(isinstance(item, tuple) and len(item) == 2 and np.ndim(item[1]) == 0 for item in data)


def _refuse_not_by_row(field: str, data: Any) -> None:
    """Raise InputError with a hint for a DataLoader, a stream, an iterator, a DataFrame, or a dict of splits."""
    indexable = "a data set with len() and [i]"
    if isinstance(data, DataLoader):
        raise InputError(field, "it yields batches", got=data, expected=indexable, hint="pass loader.dataset")
    if isinstance(data, IterableDataset) or (hasattr(data, "column_names") and not hasattr(data, "__len__")):
        hint = "load it without streaming, or pass list(...) of its pairs"
        raise InputError(field, "it is a stream", got=data, expected=indexable, hint=hint)
    if isinstance(data, Iterator):
        problem = "it can be read only once"
        raise InputError(field, problem, got=data, expected=indexable, hint="pass list(...) of it")
    if hasattr(data, "iloc"):
        hint = (
            "pass (frame.drop(columns='label').to_numpy('float32'), frame['label'].to_numpy()), or save it with to_csv "
            "and pass the file"
        )
        raise InputError(field, got=data, expected="(x, y)", hint=hint)
    if isinstance(data, dict) and {"train", "test"} & data.keys():
        problem = f"it has the splits {', '.join(map(str, data))}"
        raise InputError(field, problem, expected="one split", hint="pass train=data['train'], test=data['test']")


def _table_rows(field: str, table: Any, input: str, target: str) -> HuggingFaceRows:
    """Return the Rows of a table of Hugging Face."""
    transformed = getattr(table, "format", {}).get("type") == "custom"
    if hasattr(table, "with_format") and not transformed:
        # Without a format, the table returns Python values.
        table = table.with_format(None)
    columns = list(table.column_names)
    if transformed and len(table):
        columns = list(table[0])
    for name, column in (("input", input), ("target", target)):
        if column not in columns:
            raise InputError(
                f"{field} {name}",
                got=column,
                expected=f"one of the columns {', '.join(columns)}",
                hint=f"set input and target, as in input={columns[0]!r}, target={columns[-1]!r}",
            )
    return HuggingFaceRows(table, input, target, transformed)


def stack_items(items: Sequence[Any], rows: Index, kind: str) -> Tree:
    """Stack items into one array. If items are dicts or tuples, return a dict or tuple of arrays.

    Args:
        items: The samples or labels.
        rows: The row number of each item, for errors.
        kind: `sample` or `label`, for errors.

    Raises:
        InputError: An item is not numeric, or its shape differs from the first item's shape. The error names the row.
    """
    if len(items) == 0:
        raise InputError(f"{kind}s", "there is none")
    if isinstance(items[0], dict):
        keys = sorted(map(str, items[0]))
        for row, item in zip(rows.tolist(), items, strict=True):
            expected = f"{keys}, as row {rows[0]} has"
            if not isinstance(item, dict):
                raise InputError(f"row {row} {kind}", got=item, expected=expected)
            if item.keys() != items[0].keys():
                raise InputError(f"row {row} {kind}", got=sorted(map(str, item)), expected=expected)
        return {name: stack_items([item[name] for item in items], rows, kind) for name in items[0]}
    if isinstance(items[0], tuple):
        for row, item in zip(rows.tolist(), items, strict=True):
            if not isinstance(item, tuple) or len(item) != len(items[0]):
                expected = f"a tuple of {len(items[0])} inputs, as row {rows[0]} has"
                raise InputError(f"row {row} {kind}", got=item, expected=expected)
        return tuple(stack_items(list(parts), rows, kind) for parts in zip(*items, strict=True))
    arrays = []
    for row, item in zip(rows.tolist(), items, strict=True):
        try:
            arrays.append(_item_array(item))
        except ValueError as error:
            raise locate_error(error, f"row {row} {kind}") from None
    for row, array in zip(rows.tolist(), arrays, strict=True):
        if array.dtype.kind not in "fiub":
            raise _not_a_number(f"row {row} {kind}", array, kind)
        if array.shape != arrays[0].shape:
            expected = f"the shape {list(arrays[0].shape)}, as row {rows[0]} has"
            hint = ""
            if hasattr(items[0], "convert"):
                hint = "use images of one size and colour, as with image.convert('RGB').resize((64, 64))"
            raise InputError(f"row {row} {kind}", got=array, expected=expected, hint=hint)
    return np.stack(arrays)


def _not_a_number(field: str, array: Array, kind: str) -> InputError:
    if array.dtype.kind in "US":
        hint = NUMBER_WORDS if kind == "label" else "convert it to tokens first"
        return InputError(field, got=str(array.flat[0]) if array.size else "", expected="numbers", hint=hint)
    return InputError(field, got=array.item() if array.size == 1 else array, expected="real numbers")


def _as_arrays(part: Any) -> Tree:
    """Convert the elements of a dict or tuple to arrays, and any other object to one array."""
    if isinstance(part, dict | tuple):
        return map_tree(_item_array, part)
    return _item_array(part)


def _item_array(item: Any) -> Array:
    if isinstance(item, torch.Tensor):
        return tensor_array(item)
    # Images of PIL have these attributes.
    if hasattr(item, "convert") and hasattr(item, "size"):
        return image_array(plain_image(item))
    refuse_masked("item", item)
    return np.asarray(item)


def open_array(path: Path) -> Array:
    """Return the memory-mapped array of a `.npy` file. Only rows that are used are read from the file.

    Raises InputError if the file does not contain an array of rows.
    """
    try:
        refuse_irregular_file(path)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(str(path), f"it cannot be read as an array ({read_failure(error)})") from None
    if not isinstance(array, np.ndarray):
        raise InputError(str(path), "it is an archive of arrays", expected="one array, as numpy.save writes it")
    if not array.ndim:
        raise InputError(str(path), got=array.item(), expected="an array of rows")
    return array
