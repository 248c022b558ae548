"""The arrays of a data set, checked before use: one code path for files, for objects and for what functions make."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedraa.data.dataset import Dataset, Features, finite

NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = npt.NDArray[np.generic]
FORM = "fedraa.Dataset(name, x_train, y_train, x_test, y_test, classes)"


def as_dataset(given: object) -> Dataset:
    """The user's Dataset with arrays as they must be; its values are used as they are, not standardised.

    Tensors and lists become arrays, labels of any integer type int64, tokens too, features float32, all contiguous
    and without a copy where they are so already. Raises ValueError with one sentence: the array and what is wrong.
    """
    if not isinstance(given, Dataset):
        one = hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, dict | tuple | list)
        how = ", as x_train=torch.stack([x for x, _ in train]) and y_train=[y for _, y in train]" if one else ""
        raise ValueError(f"dataset: got {type(given).__name__}; give a {FORM} of whole arrays{how}")
    try:
        arrays = {name: _as_array(name, getattr(given, name)) for name in NAMES}
        check_arrays(arrays)
        _check_classes(given.classes, arrays)
        x_train, x_test = as_tokens(arrays) or [_as_float32(name, arrays[name]) for name in ("x_train", "x_test")]
        y_train, y_test = (np.require(arrays[name], np.int64, ["C", "W"]) for name in ("y_train", "y_test"))
    except ValueError as error:
        raise ValueError(f"dataset {given.name!r}: {error}") from None
    return replace(given, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=int(given.classes))


def check_arrays(arrays: Mapping[str, Array]) -> None:
    """Raises ValueError with one sentence if the arrays called `NAMES` are no samples with their labels."""
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"x_{split} has shape {x.shape}; it must be [samples, ...] with nothing empty")
        if x.dtype.kind not in "fiu":
            raise ValueError(f"x_{split} holds {x.dtype}; it must hold numbers")
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise ValueError(f"y_{split} is {y.dtype} of shape {y.shape}; it must be integers of shape [samples]")
        if len(x) != len(y):
            raise ValueError(f"x_{split} has {len(x)} samples but y_{split} {len(y)}; they must be as many")
        if y.min() < 0:
            raise ValueError(f"y_{split} holds label {y.min()} in row {y.argmin()}; labels count from 0")
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"samples are {x_train.shape[1:]} in x_train but {x_test.shape[1:]} in x_test; they must be alike"
        )


def as_tokens(arrays: Mapping[str, Array]) -> list[Features] | None:
    """Training and test samples as int64 tokens, if that is what they are: integers [n, length], but no bytes.

    Raises ValueError for negative ones.
    """
    both = [arrays["x_train"], arrays["x_test"]]
    if not all(x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8 for x in both):
        return None
    if min(x.min() for x in both) < 0:
        raise ValueError("x_train or x_test holds negative integers; tokens count from 0, features must be floats")
    return [np.require(x, np.int64, ["C", "W"]) for x in both]


def _check_classes(classes: Any, arrays: Mapping[str, Array]) -> None:
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise ValueError(f"classes is {classes!r}; it must be how many classes there are")
    for name in ("y_train", "y_test"):
        if (most := arrays[name].max()) >= classes:
            raise ValueError(
                f"{name} holds label {most}, but classes is {classes}; labels count from 0 to {classes - 1}"
            )


def _as_array(name: str, given: Any) -> Array:
    try:
        if isinstance(given, list | tuple) and given and all(isinstance(item, torch.Tensor) for item in given):
            given = torch.stack(tuple(given))
        if isinstance(given, torch.Tensor):
            given = given.detach().cpu()
            return np.asarray((given.float() if given.dtype is torch.bfloat16 else given).numpy())
        if isinstance(given, list | tuple) or hasattr(given, "__array__"):
            return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be made one array ({str(error).partition(chr(10))[0]})") from None
    raise ValueError(f"{name} is {type(given).__name__}; it must be an array, a tensor or a list")


def _as_float32(name: str, x: Array) -> Features:
    with np.errstate(over="ignore"):
        made = np.require(x, np.float32, ["C", "W"])
        return made if name == "x_train" else finite(name, made)  # who deals training samples says whose is not
