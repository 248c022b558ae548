"""Checks of arguments of the public functions that are not fields of an experiment."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from fedraa.errors import InputError

MAX_VALUES = 1_000_000
RUN_PATH = "the path of a run directory, such as history.directory"
RUN_PATHS = "a list of run directories, as [history.directory]"


def to_path(field: str, value: object, expected: str = "a path") -> Path:
    """Return a text or a path as a path. Raise InputError for any other value."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(field, got=value, expected=expected)
    path = Path(value)
    refuse_null(field, path)
    return path


def refuse_null(field: str, path: Path) -> None:
    """Raise InputError for a path with a null character, which no file can have."""
    if "\0" in str(path):
        raise InputError(field, "it has a null character", got=path, hint="give another path")


def to_paths(field: str, value: object, expected: str) -> list[Path]:
    """Return one or more paths as a list. Raise InputError for any other value."""
    paths = (value,)
    if not isinstance(value, os.PathLike):
        paths = as_tuple(field, value, expected)
    return [to_path(field, path, expected) for path in paths]


def as_tuple(field: str, value: Any, expected: str, single: type | tuple[type, ...] = str) -> tuple[Any, ...]:
    """Return several values as a tuple. A single value of the type `single` becomes a tuple of one.

    Args:
        field: The name of the field in the error message.
        value: One value, or several.
        expected: The values that are allowed, for the error message.
        single: The types of one value.

    Raises:
        InputError: The value is no collection, or a mapping or bytes, or it has too many items.
    """
    if isinstance(value, single):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InputError(field, got=value, expected=expected)
    values = tuple(islice(value, MAX_VALUES + 1))
    if len(values) > MAX_VALUES:
        raise InputError(field, got=value, expected=f"at most {MAX_VALUES} values")
    return values


def check_flags(**values: object) -> None:
    """Raise InputError for the first value that is neither True nor False."""
    for field, value in values.items():
        if not isinstance(value, bool):
            raise InputError(field, got=value, expected="True or False")


def check_texts(place: str, *, optional: bool = False, **values: object) -> None:
    """Raise InputError for the first value that is no text.

    Args:
        place: The object of the values. The error's field is this name, a dot and the name of the value.
        optional: True to accept None.
        **values: The values by name.
    """
    for name, value in values.items():
        if not (isinstance(value, str) or (optional and value is None)):
            raise InputError(f"{place}.{name}", got=value, expected="text, or None" if optional else "text")


def check_functions(**values: object) -> None:
    """Raise InputError for the first value that is neither None nor callable."""
    for field, value in values.items():
        if value is not None and not callable(value):
            raise InputError(field, got=value, expected="a function")
