"""Convert the exceptions of custom components to errors that name the component's field."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import FrozenInstanceError, is_dataclass
from math import inf
from numbers import Real
from typing import Any, TypeVar

from fedraa.components.text import is_built_in
from fedraa.components.user_code import find_user_code
from fedraa.errors import InputError, StructuredError, one_line

T = TypeVar("T")


@contextmanager
def convert_errors(where: str, part: object) -> Iterator[None]:
    """Convert any exception of a component in the `with` block to an InputError.

    `where` is the field of the error, such as `aggregator`. A StructuredError is raised unchanged.
    """
    try:
        yield
    except StructuredError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(part, "__qualname__", type(part).__qualname__)
        problem = f"{name} failed with {type(error).__name__}: {one_line(error)}"
        raise InputError(where, problem, hint=correction_hint(error, name)) from error


def correction_hint(error: BaseException, name: str) -> str:
    """Return a hint for the author of the component `name`: the place of the error, and common corrections."""
    hint = f"correct {find_user_code(error) or name}"
    if isinstance(error, FrozenInstanceError):
        return f"change an array by its items, as in params[:] += x; {hint}"
    if isinstance(error, AttributeError) and is_dataclass(error.obj) and is_built_in(error.obj):
        names = [attribute for attribute in dir(error.obj) if not attribute.startswith("_")]
        return f"{type(error.obj).__name__} has only {', '.join(names)}; {hint}"
    return hint


def convert_custom_errors(where: str, part: object) -> AbstractContextManager[None]:
    """Return `convert_errors` for a custom component, and an empty context for a built-in one.

    The errors of a built-in component come from the data or from other components.
    """
    return nullcontext() if is_built_in(part) else convert_errors(where, part)


def call_custom(where: str, part: object, function: Callable[..., T], *args: object) -> T:
    """Return the result of a function. Convert its error as `convert_custom_errors` does.

    The context is entered only after an error. Entering it in every local step would take microseconds.
    """
    try:
        return function(*args)
    except (Exception, SystemExit):
        with convert_custom_errors(where, part):
            raise


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


def memory_of(where: str, part: Any, *sizes: int) -> int:
    """Return the bytes that a component says its state needs. Raise InputError if it returns no number from 0.

    Args:
        where: The field of the error, such as `aggregator`.
        part: The component.
        sizes: The arguments of its method `memory`.
    """
    with convert_errors(where, part):
        size = part.memory(*sizes)
    if isinstance(size, bool) or not isinstance(size, Real) or not 0 <= float(size) < inf:
        problem = f"{type(part).__qualname__}.memory returned a wrong number of bytes"
        raise InputError(where, problem, got=size, expected="a number from 0")
    return int(float(size))


def copy_component(where: str, part: T) -> T:
    """Return a copy of a component, which one run may change. Raise InputError if it cannot be copied."""
    try:
        return deepcopy(part)
    # A component with a lock, a file or a generator cannot be copied. The type of the error varies.
    except Exception as error:
        problem = f"a part of it cannot be copied for a run: {one_line(error)}"
        raise InputError(where, problem, got=part, hint="create this part only when it is first used") from error
