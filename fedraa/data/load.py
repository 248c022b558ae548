"""Data sets by name or by file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedraa.data.archive import load_npz
from fedraa.data.dataset import Dataset, standardise


def _digits(data_dir: Path | None) -> Dataset:
    """scikit-learn's bundled 8x8 digits (UCI, Alpaydin and Kaynak 1998): one fixed split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels
    )
    train, test = standardise(x_train, x_test)
    return Dataset("digits", train, y_train, test, y_test, classes=10)


_LOADERS: dict[str, Callable[[Path | None], Dataset]] = {"digits": _digits}

DATASETS: tuple[str, ...] = tuple(_LOADERS)


def load_dataset(name: str, data_dir: Path | None) -> Dataset:
    """The data set called `name`, one of `DATASETS`, or the one in the file `name` if that ends in `.npz`.

    `data_dir` is where the files of the named sets lie, or are downloaded to; digits comes with
    scikit-learn. Raises ValueError with one sentence if the name is unknown or the data is missing or
    malformed.
    """
    if name.endswith(".npz"):
        return load_npz(Path(name))
    if name not in _LOADERS:
        raise ValueError(f"dataset is {name!r}; it must be one of {', '.join(DATASETS)}, or an .npz file")
    return _LOADERS[name](data_dir)
