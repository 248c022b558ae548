"""Checks and conversions of the arrays of a data set."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedraa.data.dataset import Dataset, Features, as_float32, require_finite, training_type
from fedraa.data.tree import Tree, refuse_masked, tensor_array
from fedraa.errors import InputError, first_line, locate_error

NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = npt.NDArray[np.generic]
NUMBER_WORDS = "number words with names, y = numpy.unique(y, return_inverse=True)"
FORM = "fedraa.Dataset(name, x_train, y_train, x_test, y_test, classes)"

Targets = Callable[[Array, Array, Any], tuple[Array, Array, int]]
"""A function that converts y_train, y_test and the number of classes to their final form, or raises ValueError.

To check the targets of a single client, it is called with the same array twice.
"""


def as_dataset(dataset: object, targets: Targets | None = None) -> Dataset:
    """Return a Dataset with contiguous arrays: labels and tokens as int64, features as float32.

    Tensors and lists become arrays, if possible without a copy. `divide_dataset` checks later that samples are finite.

    Args:
        dataset: The user's data set.
        targets: Checks and converts the targets. None means labels of classes.

    Raises:
        InputError: An array is malformed. The error names the array.
    """
    if not isinstance(dataset, Dataset):
        other = ""
        if not isinstance(dataset, tuple | list):
            other = ", or a fedraa.FederatedDataset(name, train=..., test=...) of data sets of torch or Hugging Face"
        hint = ""
        if type(dataset).__name__ == "DataFrame":
            hint = "write a table to a file by its method to_csv('FILE', index=False), and give \"csv('FILE')\""
        raise InputError("dataset", got=dataset, expected=f"a {FORM}, with arrays of all samples{other}", hint=hint)
    if not isinstance(dataset.name, str):
        raise InputError("dataset name", got=dataset.name, expected=f"text, as in {FORM}")
    try:
        y_train, y_test = (_as_array(name, getattr(dataset, name)) for name in ("y_train", "y_test"))
        x_train, x_test = _convert_inputs(dataset, y_train, y_test)
        y_train, y_test, classes = (targets or class_labels)(y_train, y_test, dataset.classes)
    except ValueError as error:
        raise locate_error(error, f"dataset {dataset.name!r}") from None
    return replace(dataset, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes)


def class_labels(y_train: Array, y_test: Array, classes: Any) -> tuple[Array, Array, int]:
    """Return the training labels and the test labels as int64, and the number of classes.

    Args:
        y_train: The training labels.
        y_test: The test labels.
        classes: The number of classes. 0 means the largest training label plus 1.

    Raises:
        InputError: A label is not an integer from 0 to `classes - 1`.
    """
    for name, y in (("y_train", y_train), ("y_test", y_test)):
        _check_labels(name, y)
    if type(classes) is int and classes == 0:
        classes = count_classes(y_train)
    _check_classes(classes, {"y_train": y_train, "y_test": y_test})
    return np.require(y_train, np.int64, ["C", "W"]), np.require(y_test, np.int64, ["C", "W"]), int(classes)


def count_classes(y_train: Array) -> int:
    """Return the largest label plus 1. Raises InputError if the result is larger than the number of samples."""
    classes = int(y_train.max()) + 1
    if classes > len(y_train):
        problem = f"its largest label is {classes - 1}, but there are only {len(y_train)} samples"
        raise InputError("y_train", problem, hint="number the classes from 0")
    return classes


def _convert_inputs(dataset: Dataset, y_train: Array, y_test: Array) -> tuple[Tree, Tree]:
    """Return the converted training and test inputs: an array, or a dict or tuple of arrays.

    Args:
        dataset: The user's data set.
        y_train: The training targets. Their length must be that of the inputs.
        y_test: The test targets.
    """
    both: tuple[Any, Any] = dataset.x_train, dataset.x_test
    if all(isinstance(x, Mapping) for x in both):
        if both[0].keys() != both[1].keys():
            raise InputError("x_test", got=sorted(both[1]), expected=f"the inputs of x_train, {sorted(both[0])}")
        pairs = {key: _convert_named_input(key, both[0][key], both[1][key], y_train, y_test) for key in both[0]}
        return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    if all(isinstance(x, tuple) and _are_inputs(x, y) for x, y in zip(both, (y_train, y_test), strict=True)):
        pair_list = [_convert_named_input(i, *pair, y_train, y_test) for i, pair in enumerate(zip(*both, strict=True))]
        return tuple(train for train, _ in pair_list), tuple(test for _, test in pair_list)
    x_train, x_test = (_as_array(name, x) for name, x in zip(("x_train", "x_test"), both, strict=True))
    return convert_arrays({"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test})


def convert_arrays(arrays: Mapping[str, Array]) -> tuple[Features, Features]:
    """Return x_train and x_test as tokens, int64 [n, length], or as features, float32 [n, ...].

    `arrays` has x_train, y_train, x_test and y_test. Raises InputError if an array of inputs is malformed, or has
    another length than its targets.
    """
    _check_inputs(arrays)
    tokens = _as_tokens(arrays)
    if tokens is not None:
        return tokens
    return _as_float32("x_train", arrays["x_train"]), _as_float32("x_test", arrays["x_test"])


def _are_inputs(x: tuple[Any, ...], y: Array) -> bool:
    """Return True if the items of a tuple are the inputs of a model, False if they are samples."""
    return len(x) != len(y) and all(hasattr(part, "__len__") and len(part) == len(y) for part in x)


def _convert_named_input(key: object, train: Any, test: Any, y_train: Array, y_test: Array) -> tuple[Array, Array]:
    """Convert one of several inputs of the model to its training type. Return its training and test values.

    Args:
        key: The name or the index of the input.
        train: The training values of the input.
        test: The test values of the input.
        y_train: The training targets.
        y_test: The test targets.
    """
    converted: list[Array] = []
    for name, values, y in ((f"x_train[{key!r}]", train, y_train), (f"x_test[{key!r}]", test, y_test)):
        x = _as_array(name, values)
        if x.dtype.kind not in "fiub" or len(x) != len(y) or 0 in x.shape:
            raise InputError(name, got=x, expected=f"real numbers, with a row for each of {len(y)} samples")
        kind = training_type(x, several=True)
        if kind is np.float32:
            converted.append(_as_float32(name, x))
        else:
            converted.append(np.require(x, kind, ["C", "W"]))
    x_train, x_test = converted
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        expected = f"the type and shape of x_train[{key!r}], {x_train.dtype} {['n', *x_train.shape[1:]]}"
        raise InputError(f"x_test[{key!r}]", got=x_test, expected=expected)
    return x_train, x_test


def _check_labels(name: str, y: Array) -> None:
    refuse_nan_labels(name, y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise InputError(name, got=y, expected="integers of shape [samples]", hint=hint_for_labels(y))
    if y.min() < 0:
        raise InputError(f"{name} row {y.argmin()}", got=int(y.min()), expected="labels of 0 or more")


def refuse_nan_labels(name: str, y: Array) -> None:
    """Raise InputError if a label is NaN."""
    if y.dtype.kind != "f":
        return
    rows = np.argwhere(np.isnan(y))
    if rows.size:
        hint = "fill it in, or remove the sample"
        raise InputError(f"{name} row {rows[0][0]}", got=float("nan"), expected="a label for every sample", hint=hint)


def hint_for_labels(y: Array) -> str:
    """Return a hint for users: how to convert these labels to integers [n]. It is empty if no conversion is known."""
    if y.dtype.kind in "USO":
        return NUMBER_WORDS
    if y.ndim == 2 and y.shape[1] == 1:
        return "pass y.ravel()"
    if y.ndim == 2 and y.dtype.kind in "iu" and y.max(initial=0) > 1:
        return "to predict the token at every position, choose the objective next-token"
    if y.ndim == 2:
        return "if a row has 1 at its class, pass y.argmax(1)"
    if y.ndim == 1 and y.dtype.kind == "f" and not np.array_equal(y, np.rint(y)):
        return "to predict the numbers themselves, choose the objective regression"
    if y.ndim == 1 and y.dtype.kind in "fb":
        return "pass y.astype(int)"
    return ""


def _check_inputs(arrays: Mapping[str, Array]) -> None:
    """Raise InputError if x_train or x_test is malformed or has another length than its targets."""
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.dtype.kind in "OSU":
            hint = "for text, pass the numbers of its words or characters, as integers [samples, length]"
            raise InputError(f"x_{split}", got=x, expected="real numbers", hint=hint)
        if x.ndim < 2 or 0 in x.shape:
            raise InputError(f"x_{split}", got=x, expected="an array [samples, ...] with at least one value")
        if x.dtype.kind not in "fiu":
            hint = "pass x.astype('float32')" if x.dtype.kind == "b" else ""
            raise InputError(f"x_{split}", got=x, expected="real numbers", hint=hint)
        if y.ndim < 1:
            raise _not_an_array(f"y_{split}", y)
        if len(x) != len(y):
            raise InputError(f"y_{split}", got=y, expected=f"a row for each of {len(x)} samples in x_{split}")
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.shape[1:] != x_test.shape[1:]:
        raise InputError("x_test", got=x_test, expected=f"samples of shape {list(x_train.shape[1:])}, as in x_train")


def _as_tokens(arrays: Mapping[str, Array]) -> tuple[Features, Features] | None:
    """Return x_train and x_test as int64 if both are tokens, otherwise None. Raises InputError for a negative token."""
    both = [arrays["x_train"], arrays["x_test"]]
    if not all(training_type(x, several=False) is np.int64 for x in both):
        return None
    for name, x in zip(("x_train", "x_test"), both, strict=True):
        if x.min() < 0:
            hint = "if these are features, pass x.astype('float32')"
            raise InputError(name, got=int(x.min()), expected="tokens of 0 or more", hint=hint)
    x_train, x_test = (np.require(x, np.int64, ["C", "W"]) for x in both)
    return x_train, x_test


def check_class_count(field: str, classes: Any) -> None:
    """Raise InputError about `field` if `classes` is not an integer from 1."""
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise InputError(field, got=classes, expected="the number of classes")


def _check_classes(classes: Any, arrays: Mapping[str, Array]) -> None:
    check_class_count("classes", classes)
    for name in ("y_train", "y_test"):
        largest = int(arrays[name].max())
        if largest >= classes:
            hint = f"classes is {classes}: correct classes or the label"
            raise InputError(name, got=largest, expected=f"labels from 0 to {classes - 1}", hint=hint)


def _as_array(name: str, values: Any) -> Array:
    refuse_masked(name, values)
    if not isinstance(values, list | tuple) and not hasattr(values, "__array__"):
        raise _not_an_array(name, values)
    try:
        if isinstance(values, list | tuple) and values and all(isinstance(item, torch.Tensor) for item in values):
            values = torch.stack(tuple(values))
        if isinstance(values, torch.Tensor):
            values = tensor_array(values)
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(name, f"it cannot be converted to one array ({first_line(error)})", got=values) from None
    if not array.ndim:
        raise _not_an_array(name, values)
    return array


def _not_an_array(name: str, values: Any) -> InputError:
    return InputError(name, got=values, expected="an array, a tensor or a list, with a row for each sample")


def _as_float32(name: str, x: Array) -> Features:
    converted = as_float32(x, name)
    # `divide_dataset` checks the training samples later, because its error can name the client.
    if name.startswith("x_train"):
        return converted
    return require_finite(name, converted)
