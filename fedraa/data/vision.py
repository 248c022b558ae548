"""Image data sets of torchvision. Missing files are downloaded."""

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.data.check import as_dataset
from fedraa.data.dataset import Dataset, Labels
from fedraa.errors import InputError, first_line

Images = npt.NDArray[np.uint8]
Arrays = tuple[Images, Labels, Images, Labels]


class _Source(NamedTuple):
    class_name: str
    archives: str
    """Glob pattern of the files that torchvision downloads, relative to the data folder."""
    options: dict[str, str]


_SOURCES = {
    "mnist": _Source("MNIST", "MNIST/raw/*.gz", {}),
    "fashion-mnist": _Source("FashionMNIST", "FashionMNIST/raw/*.gz", {}),
    "emnist": _Source("EMNIST", "EMNIST/raw/*.zip", {"split": "byclass"}),
    "cifar10": _Source("CIFAR10", "cifar-10-python.tar.gz", {}),
    "cifar100": _Source("CIFAR100", "cifar-100-python.tar.gz", {}),
}
VISION: tuple[str, ...] = tuple(_SOURCES)


def load_vision(name: str, data_dir: Path) -> Dataset:
    """Return a data set in `VISION`, with images as float32 [n, channels, height, width] from 0 to 255.

    emnist has every fifth sample of the split `byclass` of EMNIST, as in Qu et al. 2022. It has 62 classes and needs
    0.5 GB of memory. Raises InputError if the files are missing or damaged.
    """
    source = _SOURCES[name]
    try:
        _refuse_pipes(data_dir / source.archives.partition("/")[0])
        x_train, y_train, x_test, y_test = _load_arrays(source, data_dir)
    # torchvision can raise any exception for a damaged file.
    except Exception as error:
        raise InputError(
            f"dataset {name!r}",
            f"it is not in {data_dir} and could not be downloaded ({first_line(error)})",
            hint=f"put the files there that torchvision.datasets.{source.class_name}(root, download=True) writes",
        ) from error
    if name == "emnist":
        x_train, y_train, x_test, y_test = x_train[::5], y_train[::5], x_test[::5], y_test[::5]
    try:
        return as_dataset(Dataset(name, x_train, y_train, x_test, y_test))
    except InputError as error:
        raise error.with_field(f"{error.field} in {data_dir}") from None


def _refuse_pipes(place: Path) -> None:
    """Raise OSError if the path is or contains a named pipe. A read from a pipe could block forever."""
    for path in (place, *place.rglob("*")):
        if path.is_fifo():
            raise OSError(f"{path} is a named pipe")


def _load_arrays(source: _Source, data_dir: Path) -> Arrays:
    # torchvision raises a RuntimeError, "Dataset not found", for archives that are not extracted yet.
    with contextlib.suppress(RuntimeError):
        return _read_torchvision(source, data_dir, download=False)
    if _is_writable(data_dir):
        return _read_torchvision(source, data_dir, download=True)
    with tempfile.TemporaryDirectory() as scratch:
        for archive in data_dir.glob(source.archives):
            copy = Path(scratch, archive.relative_to(data_dir))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(archive, copy)
        return _read_torchvision(source, Path(scratch), download=True)


def _read_torchvision(source: _Source, root: Path, *, download: bool) -> Arrays:
    make = getattr(importlib.import_module("torchvision").datasets, source.class_name)
    # torchvision prints to stdout, but stdout is only for the output of the command.
    with contextlib.redirect_stdout(sys.stderr):
        train, test = (make(root, train=train, download=download, **source.options) for train in (True, False))
    return *_convert_samples(train), *_convert_samples(test)


def _convert_samples(split: Any) -> tuple[Images, Labels]:
    """Return the images [n, channels, height, width] and the labels of a torchvision data set.

    torchvision stores grey images as a tensor [n, h, w], and colour images as an array [n, h, w, c].
    """
    images = np.asarray(split.data)
    labels = np.asarray(split.targets, dtype=np.int64)
    if images.ndim == 3:
        return images[:, None], labels
    return images.transpose(0, 3, 1, 2), labels


def _is_writable(folder: Path) -> bool:
    """Return True if this process may write to the folder. Even for root, a permission bit must allow it."""
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)
