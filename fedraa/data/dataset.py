"""The class Dataset: training and test samples in memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.precision import warn_lost_digits
from fedraa.data.tree import Array, first_not_finite
from fedraa.errors import InputError

Features = npt.NDArray[np.float32] | npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Training and test samples in memory, without scaling.

        x, y = np.random.rand(1000, 20), np.random.randint(0, 3, 1000)
        dataset = fl.Dataset("mine", x[:800], y[:800], x[800:], y[800:], classes=3)
        fl.run(fl.Experiment(clients=4), dataset=dataset)

    A run checks the samples and by default (`standardise`) scales them. Arrays, tensors and lists of any integer or
    float type are accepted.

    Attributes:
        name: Name of the data set.
        x_train: Training inputs: features `[n, d]` or images `[n, channels, height, width]` as floats or bytes, or
            integer tokens `[n, length]`. For a model with several inputs, a tuple of arrays, or a dict that maps the
            names of the model's arguments to arrays.
        y_train: Training targets: integer labels `[n]` from 0 to `classes - 1`. Other objectives have other targets:
            numbers `[n]` or `[n, k]`, labels of positions or pixels `[n, ...]`, or 0 and 1 `[n, labels]`.
        x_test: Test inputs, in the form of `x_train`.
        y_test: Test targets, in the form of `y_train`.
        classes: Number of classes. 0 means the largest label of `y_train` plus 1.
    """

    name: str
    x_train: Any
    y_train: Any
    x_test: Any
    y_test: Any
    classes: int = 0

    def __repr__(self) -> str:
        """Return the name and the sizes, without values."""
        return f"Dataset {self.name!r} of {count_rows(self.y_train)} + {count_rows(self.y_test)} samples"


def count_rows(rows: Any) -> object:
    """Return the number of rows as text, or a question mark if `rows` has no length."""
    try:
        return len(rows)
    except TypeError:
        return "?"


def require_finite(name: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return `x`, or raise InputError if it contains NaN or infinity."""
    row = first_not_finite(x)
    if row is not None:
        raise not_finite(f"{name} row {row}")
    return x


def not_finite(field: str, hint: str = "") -> InputError:
    """Return an error about a value that is NaN or infinite. `field` names the row, such as `x_train row 7`."""
    problem = "it has NaN, infinity or a value beyond float32"
    return InputError(field, problem, expected="finite numbers", hint=hint)


def training_type(x: Array, *, several: bool) -> type[np.generic]:
    """Return the type of an input during training: int64 for tokens, bool for masks, float32 for all other inputs.

    Integers are tokens if x is a matrix [n, length] or one of several inputs. Bytes never are. Booleans are a mask if x
    is one of several inputs.

    Args:
        x: The raw values of the input, [n, ...].
        several: True if the model has several inputs.
    """
    if several and x.dtype.kind == "b":
        return np.bool_
    if (several or x.ndim == 2) and x.dtype.kind in "iu" and x.dtype != np.uint8:
        return np.int64
    return np.float32


def as_float32(x: npt.NDArray[np.generic], name: str = "") -> npt.NDArray[np.float32]:
    """Return x as contiguous float32, if possible without a copy. Values above the float32 limit become infinite.

    A warning about lost significant digits names x by `name`. Without a name there is no warning.
    """
    if name:
        warn_lost_digits(name, x)
    with np.errstate(over="ignore"):
        return np.require(x, np.float32, ["C", "W"])
