"""A data set in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.precision import warn_lost_digits
from fedraa.data.tree import first_not_finite
from fedraa.errors import InputError

Features = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples of one task.

    `x_train` holds features `[n, d]` or images `[n, channels, height, width]`, floats or bytes, or integer tokens
    `[n, length]`. `y_train` holds integer labels `[n]` from 0 to `classes - 1`. Without `classes` the largest label of
    `y_train` defines the last class. The values are raw. A run with `standardise`, the default, scales floats and
    bytes by the statistics of the training samples.

    Objectives other than classification have other targets in `y_train`: numbers `[n]` or `[n, k]`, labels of
    positions or pixels `[n, ...]`, 0 and 1 `[n, labels]`. If the model has several inputs, `x_train` is a tuple of
    arrays, or a dict that maps the names of the model's arguments to arrays.

    A run checks the data set before the start. It accepts arrays, tensors and lists of any integer or float type.

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
        """Return the name and the numbers of training and test samples, but no values."""
        return f"Dataset {self.name!r} of {count_rows(self.y_train)} + {count_rows(self.y_test)} samples"


def count_rows(rows: Any) -> object:
    """Return the number of rows, or a question mark if `rows` has no length."""
    try:
        return len(rows)
    except TypeError:
        return "?"


def require_finite(name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return `x` itself; raise InputError if one of its values is NaN or infinite."""
    row = first_not_finite(x)
    if row is not None:
        raise not_finite(f"{name} row {row}")
    return x


def not_finite(field: str, hint: str = "") -> InputError:
    """Return the error about a row with a value that is not finite."""
    problem = "it holds NaN, an infinity or a value beyond float32"
    return InputError(field, problem, expected="finite numbers", hint=hint)


def as_float32(x: npt.NDArray[np.generic], name: str = "") -> npt.NDArray[np.float32]:
    """Return x as contiguous float32, without a copy if it already is. Values beyond float32 become infinite.

    If `name` is given, a warning names the first feature that loses significant digits.
    """
    if name:
        warn_lost_digits(name, x)
    with np.errstate(over="ignore"):
        return np.require(x, np.float32, ["C", "W"])
