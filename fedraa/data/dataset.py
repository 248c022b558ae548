"""A data set in memory, and the standardisation that every image and feature set gets."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.tree import first_not_finite

Features = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples of one task.

    `x_train` is float32 `[n, d]` or `[n, channels, height, width]`, standardised with the training
    statistics, or int64 tokens `[n, length]` for text; `y_train` is int64 `[n]` in `0 .. classes - 1`. All
    are C-contiguous.

    With another objective than classification `y_train` is what that takes: numbers `[n]` or `[n, k]`, labels of
    positions or pixels `[n, ...]`, 0 and 1 `[n, labels]`; `classes` may then be left out. `x_train` may be several
    inputs: a tuple of arrays, or a dict of them by the names of the model's arguments.

    What a user makes is checked, and made so, when a run is built: tensors, lists and other types of integers and
    floats will do. Its values are taken as they are; `standardise` is for files and the named sets.

        x, y = np.random.rand(1000, 20), np.random.randint(0, 3, 1000)
        dataset = fl.Dataset("mine", x[:800], y[:800], x[800:], y[800:], classes=3)
        fl.run(fl.Experiment(clients=4), dataset=dataset)
    """

    name: str
    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    classes: int = 0

    def __repr__(self) -> str:
        """Return the name and the numbers of samples, and no values."""
        return f"Dataset {self.name!r} of {count_rows(self.y_train)} + {count_rows(self.y_test)} samples"


def count_rows(rows: Any) -> object:
    """Return how many rows there are; a question mark where that is not known."""
    try:
        return len(rows)
    except TypeError:
        return "?"


def finite(name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """`x` itself; ValueError if it has a value that float32 could not hold."""
    if (row := first_not_finite(x)) is not None:
        raise ValueError(f"{name} row {row} holds NaN, an infinity or a value beyond float32; all must be finite")
    return x


def standardise(
    x_train: npt.NDArray[np.generic], x_test: npt.NDArray[np.generic]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Shift and scale each channel (dimension 1) to mean 0 and variance 1 over the training samples.

    The result does not depend on the scale of the input, so bytes in 0..255 need no division first. A
    channel that is constant in training is only shifted. Training samples that are not finite stay so, and count for
    nothing: who deals them says whose they are. Raises ValueError for other values that float32 cannot hold.
    """
    with np.errstate(over="ignore"):
        train, test = (np.array(x, dtype=np.float32, order="C") for x in (x_train, x_test))
    finite("x_test", test)
    sound: Any = slice(None)
    if first_not_finite(train) is not None:
        sound = np.isfinite(train.reshape(len(train), -1)).all(axis=1)
        if not sound.any():
            finite("x_train", train)
    axes = (0, *range(2, train.ndim))
    mean = train[sound].mean(axis=axes, dtype=np.float64, keepdims=True).astype(np.float32)
    train -= mean
    test -= mean
    deviation = np.sqrt(np.square(train[sound]).mean(axis=axes, dtype=np.float64, keepdims=True)).astype(np.float32)
    deviation[deviation == 0] = 1.0
    train /= deviation
    test /= deviation
    return train, test
