"""The arrays of a data set, checked before use: one code path for files, for objects and for what functions make."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedraa.data.dataset import Dataset, Features, as_float32, finite
from fedraa.data.tree import Tree, refuse_masked
from fedraa.errors import short_text

NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = npt.NDArray[np.generic]
NUMBER_WORDS = "number words with names, y = numpy.unique(y, return_inverse=True)"
FORM = "fedraa.Dataset(name, x_train, y_train, x_test, y_test, classes)"

Targets = Callable[[Array, Array, Any], tuple[Array, Array, int]]
"""What makes y_train, y_test and the number of classes what they must be, or raises ValueError.

Both are one array where they are the targets of one client.
"""


def as_dataset(given: object, targets: Targets | None = None) -> Dataset:
    """Return the user's Dataset with arrays as they must be; its values stay as they are.

    Tensors and lists become arrays, labels of any integer type int64, tokens too, features float32, all contiguous
    and without a copy where they are so already. `targets` does the same for what is learnt (default: labels). Raises
    ValueError with one sentence: the array and what is wrong. Whether training samples are finite is asked when they
    are dealt.
    """
    if not isinstance(given, Dataset):
        rows = ""
        if not isinstance(given, tuple | list):
            rows = ", or a fedraa.FederatedDataset(name, train=..., test=...) of data sets of torch or Hugging Face"
        raise ValueError(f"dataset: got {type(given).__name__}; give a {FORM} of whole arrays{rows}")
    if not isinstance(given.name, str):
        raise ValueError(f"dataset: its name is of type {type(given.name).__name__}; give a {FORM}")
    try:
        y_train, y_test = (_as_array(name, getattr(given, name)) for name in ("y_train", "y_test"))
        x_train, x_test = _inputs(given, y_train, y_test)
        y_train, y_test, classes = (targets or class_labels)(y_train, y_test, given.classes)
    except ValueError as error:
        raise ValueError(f"dataset {given.name!r}: {error}") from None
    return replace(given, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes)


def class_labels(y_train: Array, y_test: Array, classes: Any) -> tuple[Array, Array, int]:
    """Labels of one class per sample."""
    for name, y in (("y_train", y_train), ("y_test", y_test)):
        _check_labels(name, y)
    if type(classes) is int and classes == 0:
        classes = count_classes(y_train)
    _check_classes(classes, {"y_train": y_train, "y_test": y_test})
    return np.require(y_train, np.int64, ["C", "W"]), np.require(y_test, np.int64, ["C", "W"]), int(classes)


def count_classes(y_train: Array) -> int:
    """Return one more than the largest label; ValueError if the labels cannot be numbers of classes."""
    classes = int(y_train.max()) + 1
    if classes > len(y_train):
        raise ValueError(f"y_train goes up to {classes - 1} with {len(y_train)} samples; number the classes from 0")
    return classes


def _inputs(given: Dataset, y_train: Array, y_test: Array) -> tuple[Tree, Tree]:
    """The inputs of both splits, each an array, or a dict or a tuple of arrays."""
    both: tuple[Any, Any] = given.x_train, given.x_test
    if all(isinstance(x, Mapping) for x in both):
        if both[0].keys() != both[1].keys():
            raise ValueError(f"x_train has the inputs {sorted(both[0])}, x_test {sorted(both[1])}; they must be alike")
        pairs = {key: _several(key, both[0][key], both[1][key], y_train, y_test) for key in both[0]}
        return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    if all(isinstance(x, tuple) and _are_inputs(x, y) for x, y in zip(both, (y_train, y_test), strict=True)):
        pair_list = [_several(i, *pair, y_train, y_test) for i, pair in enumerate(zip(*both, strict=True))]
        return tuple(train for train, _ in pair_list), tuple(test for _, test in pair_list)
    arrays = {"x_train": _as_array("x_train", both[0]), "x_test": _as_array("x_test", both[1])}
    check_inputs(arrays | {"y_train": y_train, "y_test": y_test})
    x_train, x_test = as_tokens(arrays) or [_as_float32(name, x) for name, x in arrays.items()]
    return x_train, x_test


def _are_inputs(x: tuple[Any, ...], y: Array) -> bool:
    """Whether a tuple holds inputs with a row per sample; it may be the samples themselves."""
    return len(x) != len(y) and all(hasattr(part, "__len__") and len(part) == len(y) for part in x)


def _several(key: object, train: Any, test: Any, y_train: Array, y_test: Array) -> tuple[Array, Array]:
    """One of several inputs, in both splits: float32 (also of bytes), int64 or bool."""
    found = []
    for name, given, y in ((f"x_train[{key!r}]", train, y_train), (f"x_test[{key!r}]", test, y_test)):
        x = _as_array(name, given)
        if x.dtype.kind not in "fiub" or len(x) != len(y) or 0 in x.shape:
            raise ValueError(
                f"{name} is {x.dtype} {x.shape}; it must be numbers with a row for each of {len(y)} samples"
            )
        kind: Any = x.dtype if x.dtype.kind == "b" else np.int64
        plain = x.dtype.kind == "f" or x.dtype == np.uint8
        found.append(_as_float32(name, x) if plain else np.require(x, kind, ["C", "W"]))
    if found[0].shape[1:] != found[1].shape[1:] or found[0].dtype != found[1].dtype:
        raise ValueError(f"x_train[{key!r}] and x_test[{key!r}] differ in shape or type; they must be alike")
    return found[0], found[1]


def check_arrays(arrays: Mapping[str, Array]) -> None:
    """Raises ValueError with one sentence if the arrays called `NAMES` are no samples with their labels."""
    check_inputs(arrays)
    for name in ("y_train", "y_test"):
        _check_labels(name, arrays[name])


def _check_labels(name: str, y: Array) -> None:
    refuse_nan_labels(name, y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError(
            f"{name} is {y.dtype} of shape {y.shape}; it must be integers of shape [samples]{remedy_for_labels(y)}"
        )
    if y.min() < 0:
        raise ValueError(f"{name} holds label {y.min()} in row {y.argmin()}; labels count from 0")


def refuse_nan_labels(name: str, y: Array) -> None:
    """Raise ValueError if a label is NaN."""
    if y.dtype.kind == "f" and (rows := np.argwhere(np.isnan(y))).size:
        raise ValueError(f"{name} row {rows[0][0]} is NaN; every sample must have a label: fill it in or leave it out")


def remedy_for_labels(y: Array) -> str:
    """Return the end of a sentence about labels that are no integers [n]: how to make them so."""
    if y.dtype.kind in "USO":
        return f"; {NUMBER_WORDS}"
    if y.ndim == 2 and y.shape[1] == 1:
        return "; give y.ravel()"
    if y.ndim == 2:
        return "; if a row has 1 at its class, give y.argmax(1)"
    if y.ndim == 1 and y.dtype.kind == "f" and not np.array_equal(y, np.rint(y)):
        return "; to predict the numbers themselves choose the objective regression"
    if y.ndim == 1 and y.dtype.kind in "fb":
        return "; give y.astype(int)"
    return ""


def check_inputs(arrays: Mapping[str, Array]) -> None:
    """Raises ValueError with one sentence if x_train and x_test are no samples, as many as y_train and y_test say."""
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"x_{split} has shape {x.shape}; it must be [samples, ...] with nothing empty")
        if x.dtype.kind not in "fiu":
            remedy = ": give x.astype('float32')" if x.dtype.kind == "b" else ""
            raise ValueError(f"x_{split} holds {x.dtype}; it must hold numbers{remedy}")
        if y.ndim < 1 or len(x) != len(y):
            many = len(y) if y.ndim else "one number"
            raise ValueError(f"x_{split} has {len(x)} samples but y_{split} {many}; they must be as many")
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
        raise ValueError(
            "x_train or x_test holds negative integers; tokens count from 0, features must be floats: "
            "give x.astype('float32')"
        )
    return [np.require(x, np.int64, ["C", "W"]) for x in both]


def _check_classes(classes: Any, arrays: Mapping[str, Array]) -> None:
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise ValueError(f"classes is {short_text(classes)}; it must be how many classes there are")
    for name in ("y_train", "y_test"):
        if (most := arrays[name].max()) >= classes:
            raise ValueError(
                f"{name} holds label {most}, but classes is {classes}; labels count from 0 to {classes - 1}"
            )


def _as_array(name: str, given: Any) -> Array:
    refuse_masked(name, given)
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
    made = as_float32(x, name)
    # `deal` checks the training samples, because it can name the client.
    return made if name.startswith("x_train") else finite(name, made)
