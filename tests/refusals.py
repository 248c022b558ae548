"""Assertions on structured errors, and a strict reader of JSON.

The assertions check the type, the field and the value of an error. They leave the wording free.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedraa.errors import InputError, StructuredError

_ANY = object()


@contextmanager
def refuses(
    field: str,
    *names: str,
    got: object = _ANY,
    error: type[StructuredError] = InputError,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Assert that the block raises exactly this type of error about `field`.

    Args:
        field: The field of the error.
        names: Names that the sentence must contain because the user needs them: an option, a file, a class or a number.
        got: The value that the error must carry; by default any.
        error: The type of the error.
    """
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    assert caught.value.field == field
    if got is not _ANY:
        assert caught.value.got == got
    for name in names:
        assert name in str(caught.value)


def read_strict_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise ValueError for NaN and Infinity, which Python's reader accepts."""

    def refuse_constant(text: str) -> None:
        raise ValueError(f"{path} has {text}, which is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse_constant)
