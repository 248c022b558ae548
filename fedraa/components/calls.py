"""Convert the exceptions of custom components to errors that name the component's field."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedraa.errors import InputError, StructuredError

_MESSAGE = re.compile(r"(?P<field>[a-z_]+): (?P<problem>.+)")


@contextmanager
def convert_errors(where: str, part: object) -> Iterator[None]:
    """Convert any exception of a component in the `with` block to an InputError.

    `where` is the field of the error, such as `aggregator`.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        known = to_structured_error(error)
        if known is error:
            raise
        name = getattr(part, "__qualname__", type(part).__qualname__)
        problem = f"{name} failed with {type(error).__name__}: {one_line(error)}"
        raise known or InputError(where, problem, hint=f"correct {name}") from error


def change_in_place(
    where: str, part: object, method: str, array: object, *args: object, name: str, **values: object
) -> None:
    """Call a method that must change its first argument in place. Raise InputError if it fails or returns a new array.

    Args:
        where: The field of the error, such as `server_optimizer`.
        part: The component.
        method: The name of the component's method.
        array: The first argument.
        args: The other arguments.
        name: The name of the first argument.
        values: The keyword arguments.
    """
    with convert_errors(where, part):
        returned = getattr(part, method)(array, *args, **values)
    if returned is not None and returned is not array:
        problem = f"{type(part).__qualname__}.{method} returned a {type(returned).__name__}, which is not used"
        raise InputError(where, problem, hint=f"change {name} in place, and return nothing")


def to_structured_error(error: BaseException) -> StructuredError | None:
    """Return an exception as a structured error; None if it has no field.

    A ValueError of the form `field: problem` becomes an InputError. The package schedulers raises such errors, because
    it does not import fedraa.
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
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())
