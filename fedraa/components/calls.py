"""Conversion of the exceptions of custom components to errors about a field."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedraa.errors import InputError, StructuredError

_MESSAGE = re.compile(r"(?P<field>[a-z_]+): (?P<problem>.+)")


@contextmanager
def convert_errors(where: str, part: object) -> Iterator[None]:
    """Convert an error that the component raises in the block to an InputError about the field `where`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        known = as_structured(error)
        if known is error:
            raise
        name = getattr(part, "__qualname__", type(part).__qualname__)
        problem = f"{name} failed with {type(error).__name__}: {one_line(error)}"
        raise known or InputError(where, problem, hint=f"correct {name}") from error


def as_structured(error: BaseException) -> StructuredError | None:
    """Return a structured error itself, or a ValueError with the message `field: problem` as one, or None for others.

    The package schedulers raises such ValueErrors, because it does not import fedraa.
    """
    if isinstance(error, StructuredError):
        return error
    if not isinstance(error, ValueError):
        return None
    match = _MESSAGE.fullmatch(one_line(error))
    if match is None:
        return None
    return InputError(match["field"], match["problem"])


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())
