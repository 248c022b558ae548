"""Data sets by name or by file."""

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.components import Seam, is_path
from fedraa.data.archive import load_npz
from fedraa.data.check import Targets, as_dataset
from fedraa.data.dataset import Dataset, standardise
from fedraa.data.text import load_agnews
from fedraa.data.vision import VISION, load_vision

SOURCES: Seam[Any] = Seam("dataset", (), {})
DIGITS_TEST = 360  # rows, a fifth
DATASETS: tuple[str, ...] = ("digits", *VISION, "agnews")


def load_dataset(name: str, data_dir: Path | None, targets: Targets | None = None) -> Dataset:
    """The data set called `name`, one of `DATASETS`, or the one in the file `name` if that ends in `.npz`.

    `package.module:callable` returns a Dataset; it is called with `data_dir` if it takes that.

    `data_dir` is the folder with the files of the named sets, where missing images are downloaded to;
    digits comes with scikit-learn. `targets` checks what is learnt, if that is not labels. Raises ValueError with one
    sentence if the name is unknown or the data is missing or malformed.
    """
    if name.endswith(".npz"):
        return load_npz(Path(name), targets)
    if is_path(name.partition("(")[0].strip()):
        return _own(name, data_dir, targets)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        raise ValueError(
            f"dataset is {name!r}; it must be one of {known}, the path of an .npz file, or package.module:callable"
        )
    named = _named(name, data_dir)
    return named if targets is None else as_dataset(named, targets)


def _named(name: str, data_dir: Path | None) -> Dataset:
    if name == "digits":
        return _digits()
    if data_dir is None or not data_dir.is_dir():
        raise ValueError(f"data_dir is {data_dir}; dataset {name!r} needs a folder that exists")
    return load_agnews(data_dir) if name == "agnews" else load_vision(name, data_dir)


def _own(path: str, data_dir: Path | None, targets: Targets | None) -> Dataset:
    made = SOURCES.make(path)
    try:
        if not isinstance(made, Dataset) and callable(made):
            made = made(data_dir=data_dir) if "data_dir" in inspect.signature(made).parameters else made()
    except Exception as error:
        raise ValueError(f"dataset: {path} failed with {type(error).__name__}: {error}") from error
    return as_dataset(made, targets)


def _digits() -> Dataset:
    """scikit-learn's bundled 8x8 digits (UCI, Alpaydin and Kaynak 1998): one fixed split, stratified by label.

    The table is read where scikit-learn has it, and `digits_split.npy` holds the rows of its `train_test_split` with
    random_state 0: to import scikit-learn takes longer than to start a worker.
    """
    package = find_spec("sklearn")
    assert package is not None  # it is among our dependencies
    table = np.loadtxt(Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
    train, test = np.split(np.load(Path(__file__).with_name("digits_split.npy")), [-DIGITS_TEST])
    x_train, x_test = standardise(images[train], images[test])
    return Dataset("digits", x_train, labels[train], x_test, labels[test], classes=10)
