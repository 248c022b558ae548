"""Files of LEAF (Caldas et al. 2018, https://github.com/TalwalkarLab/leaf).

The script `preprocess.sh` of a data set NAME writes the folders `data/NAME/data/train` and `data/NAME/data/test`. Their
JSON files have the form

    {"users": ["A", "B"], "num_samples": [2, 1], "user_data": {"A": {"x": [...], "y": [...]}, "B": ...}}

Users are distributed over several files. The test files have the same users as the training files with the option
`-t sample`, and other users with `-t user`. `num_samples` is ignored, because for Shakespeare it also counts samples
that LEAF has removed. Users in `user_data` that are missing in `users` have no samples and are ignored.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.tree import Array
from fedraa.errors import InputError, locate_error, read_failure
from fedraa.reading.regular_files import read_regular_file

Convert = Callable[[list[Any], list[Any]], tuple[Any, Any]]
"""A function that converts the x and the y of one user, or raises ValueError."""


@dataclass
class LeafSplit:
    """The samples of the training or the test split.

    Each list has one entry for each user in a file: the name of the user, the samples x, and their labels y.
    """

    users: list[str] = field(default_factory=list)
    x: list[Any] = field(default_factory=list)
    y: list[Any] = field(default_factory=list)

    @property
    def owners(self) -> list[str]:
        """Return the name of the user for each sample."""
        owners: list[str] = np.repeat(self.users, [len(y) for y in self.y]).tolist()
        return owners


def has_leaf_files(root: Path) -> bool:
    """Return True if the folder has JSON files with training samples and JSON files with test samples."""
    return all(any((root / split).glob("*.json")) for split in ("train", "test"))


def read_leaf(root: Path, convert: Convert) -> tuple[LeafSplit, LeafSplit]:
    """Return the training and the test samples.

    Raises InputError if the samples are malformed. The error names the file and the user.
    """
    train, test = (_read_split(root / split, convert) for split in ("train", "test"))
    return train, test


def as_classes(y: Any, classes: int, field: str = "y") -> Array:
    """Return labels as int64 [samples].

    Args:
        y: The labels.
        classes: The number of classes.
        field: The name of the labels in errors.

    Raises:
        InputError: A label is not from 0 to `classes - 1`.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InputError(field, got=labels, expected="one label for each sample")
    integers = labels.astype(np.int64) if labels.dtype.kind in "iuf" else np.full(labels.shape, -1)
    wrong = np.flatnonzero((integers != labels) | (integers < 0) | (integers >= classes))
    if wrong.size:
        raise InputError(f"{field} {wrong[0]}", got=y[wrong[0]], expected=f"a label from 0 to {classes - 1}")
    return integers


def _read_split(folder: Path, convert: Convert) -> LeafSplit:
    split = LeafSplit()
    for path in sorted(folder.glob("*.json")):
        data = _read_file(path)
        for user in data["users"]:
            try:
                entry = data["user_data"][user]
                x, y = entry["x"], entry["y"]
                if len(x) != len(y):
                    raise InputError("y", f"it has {len(y)} entries", expected=f"{len(x)}, as x has")
                if not y:
                    continue
                converted = convert(x, y)
            except (KeyError, TypeError, ValueError) as error:
                raise locate_error(error, f"{path}: user {user!r}") from None
            split.users.append(str(user))
            split.x.append(converted[0])
            split.y.append(converted[1])
    if not split.users:
        raise InputError(str(folder), "its files have no sample")
    return split


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular_file(path))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"it cannot be read as JSON ({read_failure(error)})") from None
    if not isinstance(data, dict) or not isinstance(data.get("users"), list) or "user_data" not in data:
        raise InputError(str(path), "it is not a file of LEAF", expected="a dict with users, num_samples and user_data")
    return data
