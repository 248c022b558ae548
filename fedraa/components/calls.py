"""Conversion of the exceptions of custom components to errors about a field."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedraa.errors import InputError, StructuredError

# The beginning of a message that names its field.
_FIELD = re.compile(r"[a-z_]+: ")


@contextmanager
def calling(where: str, part: object) -> Iterator[None]:
    """Within, an error that the component raises becomes an InputError about the field `where`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if names_field(error):
            raise
        name = getattr(part, "__qualname__", type(part).__qualname__)
        raise InputError(where, f"{name} failed with {type(error).__name__}: {one_line(error)}") from error


def names_field(error: BaseException) -> bool:
    """Return True for an error that names its field."""
    if isinstance(error, StructuredError):
        return True
    return isinstance(error, ValueError) and _FIELD.match(str(error)) is not None


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())
