"""Samples by row, read when they are wanted: arrays, files of them, data sets of torch and of Hugging Face."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedraa.data.tree import Array, Tree, leaves, mapped, take
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
        pairs = []
        for row in rows.tolist():
            try:
                item = self.dataset[row]
            except Exception as error:  # the user's own
                raise ValueError(f"row {row}: {type(error).__name__}: {error}") from error
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise ValueError(f"row {row} is {type(item).__name__}; it must be a pair of sample and label")
            pairs.append(item)
        return stacked([x for x, _ in pairs], rows, "sample"), stacked([y for _, y in pairs], rows, "label")

    def labels(self) -> Array:
        known = getattr(self.dataset, "targets", None)
        if known is not None and len(known) == len(self) and not getattr(self.dataset, "target_transform", None):
            return np.asarray(known)
        return super().labels()


@dataclass(frozen=True, eq=False)
class HuggingFaceRows(Rows):
    """A table of Hugging Face's `datasets`: the columns of samples and of labels."""

    dataset: Any
    input: str
    target: str

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        table = self.dataset[rows.tolist()]
        return stacked(table[self.input], rows, "sample"), stacked(table[self.target], rows, "label")

    def labels(self) -> Array:
        labels: Array = stacked(list(self.dataset[self.target]), np.arange(len(self)), "label")
        return labels


@dataclass(frozen=True, eq=False)
class ImageRows(Rows):
    """Image files, as float32 [channels, height, width] from 0 to 1."""

    paths: tuple[Path, ...]
    y: Array
    size: int | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Index) -> tuple[Tree, Array]:
        images = [self._image(self.paths[row]) for row in rows.tolist()]
        for row, image in zip(rows.tolist(), images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"{self.paths[row]} is {list(image.shape)}, but {self.paths[rows[0]]} {list(images[0].shape)}; "
                    "give all one size, as in folder(PATH, size=64)"
                )
        return np.stack(images), self.y.take(rows)

    def labels(self) -> Array:
        return self.y

    def _image(self, path: Path) -> Array:
        from PIL import Image, UnidentifiedImageError  # of the extra that reads images

        try:
            refuse_no_file(path)
            with Image.open(path) as image:
                if image.mode.startswith(("I", "F")):  # which would be clipped
                    raise OSError(f"{image.mode}, more than 8 bits for a colour; convert it first")
                plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
                return image_array(plain if self.size is None else plain.resize((self.size, self.size)))
        except (OSError, UnidentifiedImageError) as error:
            raise ValueError(f"{path} cannot be read as an image ({error.strerror or error})") from None


def as_rows(what: str, given: Any, input: str = "", target: str = "") -> Rows:
    """Samples as they were given: Rows, a pair of arrays (x, y), a Hugging Face table, or a map-style data set.

    ValueError says, of `what`, what else they are.
    """
    if isinstance(given, Rows):
        return given
    if isinstance(given, tuple | list) and len(given) == 2:
        x, y = (mapped(_array, part) if isinstance(part, dict | tuple) else _array(part) for part in given)
        counts = {len(leaf) for leaf in leaves(x)} | {len(y)}
        if len(counts) > 1:
            raise ValueError(f"{what} has arrays of {', '.join(map(str, sorted(counts)))} rows; they must be as many")
        return ArrayRows(x, y)
    if hasattr(given, "column_names") and hasattr(given, "features"):
        for column in (input, target):
            if column not in given.column_names:
                raise ValueError(
                    f"{what} has no column {column!r}; it has {', '.join(given.column_names)}: give input and target"
                )
        return HuggingFaceRows(given, input, target)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, dict | str | np.ndarray):
        return TorchRows(given)
    raise ValueError(f"{what} is {type(given).__name__}; it must be (x, y), Rows, or a data set with len and [i]")


def stacked(items: Sequence[Any], rows: Index, what: str) -> Tree:
    """One array of what each row has, dicts and tuples likewise; ValueError names the first row that is not alike."""
    if not items:
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
    made = [_array(item) for item in items]
    for row, array in zip(rows.tolist(), made, strict=True):
        if array.dtype.kind not in "fiub":
            said = "missing" if items[0] is None or array.dtype == object else array.dtype
            raise ValueError(f"the {what} of row {row} is {said}; it must be numbers")
        if array.shape != made[0].shape:
            raise ValueError(
                f"the {what} of row {row} is {list(array.shape)}, that of row {rows[0]} {list(made[0].shape)}; "
                "they must be alike"
            )
    return np.stack(made)


def image_array(image: Any) -> Array:
    """A PIL image as float32 [channels, height, width] from 0 to 1."""
    pixels = np.asarray(image, np.float32) / 255
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _array(item: Any) -> Array:
    if isinstance(item, torch.Tensor):
        return np.asarray(item.detach().cpu().numpy())
    if hasattr(item, "convert") and hasattr(item, "size"):  # of PIL
        return image_array(item if item.mode in ("L", "RGB") else item.convert("RGB"))
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
