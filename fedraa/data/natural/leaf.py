"""Files of LEAF (Caldas et al. 2018, https://github.com/TalwalkarLab/leaf).

The script `preprocess.sh` of a data set NAME writes the folders `data/NAME/data/train` and `data/NAME/data/test`. Their
JSON files have the form

    {"users": ["A", "B"], "num_samples": [2, 1], "user_data": {"A": {"x": [...], "y": [...]}, "B": ...}}

Users are distributed over several files. The test files have the same users as the training files with the option
`-t sample`, and other users with `-t user`. `num_samples` is ignored, because for Shakespeare it also counts samples
that LEAF has removed. Users in `user_data` that are missing in `users` have no samples and are ignored.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
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


def as_classes(y: Sequence[Any], labels: Sequence[int], place: Callable[[int], str] = "y {}".format) -> Array:
    """Return the class of each sample, int64 [samples]. The class of a label is its index in `labels`.

    Args:
        y: The label of each sample.
        labels: The allowed labels.
        place: A function from a sample's index to the name of its label in errors.

    Raises:
        InputError: A label is not allowed.
    """
    classes: dict[Any, int] = {label: number for number, label in enumerate(labels)}
    expected = f"one of the labels {', '.join(map(str, labels))}"
    if isinstance(labels, range):
        expected = f"a label from {labels[0]} to {labels[-1]}"
    codes = np.empty(len(y), np.int64)
    for row, label in enumerate(y):
        if isinstance(label, bool) or not isinstance(label, int | float | np.number) or label not in classes:
            raise InputError(place(row), got=label, expected=expected)
        codes[row] = classes[label]
    return codes


def _read_split(folder: Path, convert: Convert) -> LeafSplit:
    split = LeafSplit()
    for path in sorted(folder.glob("*.json")):
        data = _read_file(path)
        for user in data["users"]:
            try:
                x, y = _samples_of(data["user_data"].get(user))
                if len(x) != len(y):
                    raise InputError("y", f"it has {len(y)} entries", expected=f"{len(x)}, as x has")
                if not y:
                    continue
                converted = convert(x, y)
            except ValueError as error:
                raise locate_error(error, f"{path}: user {user!r}") from None
            split.users.append(str(user))
            split.x.append(converted[0])
            split.y.append(converted[1])
    if not split.users:
        raise InputError(str(folder), "its files have no sample")
    return split


def _samples_of(entry: object) -> tuple[list[Any], list[Any]]:
    """Return the lists x and y of a user's entry. Raise InputError if it has another form."""
    if isinstance(entry, dict) and isinstance(entry.get("x"), list) and isinstance(entry.get("y"), list):
        return entry["x"], entry["y"]
    raise InputError("user_data", got=entry, expected="a dict with the lists x and y")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(str(path), f"it cannot be read as JSON ({read_failure(error)})") from None
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("users"), list)
        or not isinstance(data.get("user_data"), dict)
        or not all(isinstance(user, str) for user in data["users"])
    ):
        raise InputError(
            str(path), "it is not a file of LEAF", expected="a dict with the list users and the dict user_data"
        )
    named: Counter[str] = Counter(data["users"])
    for user, times in named.items():
        if times > 1:
            raise InputError(f"{path}: users", f"it has {user!r} {times} times", hint="name each user once")
    return data
