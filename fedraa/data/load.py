"""Data sets by name or by file."""

from pathlib import Path

import numpy as np

from fedraa.data.archive import load_npz
from fedraa.data.dataset import Dataset, standardise
from fedraa.data.text import load_agnews
from fedraa.data.vision import VISION, load_vision

DATASETS: tuple[str, ...] = ("digits", *VISION, "agnews")


def load_dataset(name: str, data_dir: Path | None) -> Dataset:
    """The data set called `name`, one of `DATASETS`, or the one in the file `name` if that ends in `.npz`.

    `data_dir` is the folder with the files of the named sets, where missing images are downloaded to;
    digits comes with scikit-learn. Raises ValueError with one sentence if the name is unknown or the data
    is missing or malformed.
    """
    if name.endswith(".npz"):
        return load_npz(Path(name))
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        raise ValueError(f"dataset is {name!r}; it must be one of {known}, or the path of an .npz file")
    if name == "digits":
        return _digits()
    if data_dir is None or not data_dir.is_dir():
        raise ValueError(f"data_dir is {data_dir}; dataset {name!r} needs a folder that exists")
    return load_agnews(data_dir) if name == "agnews" else load_vision(name, data_dir)


def _digits() -> Dataset:
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
