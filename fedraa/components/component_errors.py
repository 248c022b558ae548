"""Errors about the value that a user gave for a component."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from fedraa.errors import InputError, suggest_closest


def unknown_component_error(field: str, name: str, names: Collection[str], hint: str = "") -> InputError:
    """Return the error about an unknown name of a component.

    Args:
        field: The field that takes the component.
        name: The unknown name.
        names: The names of all components of this field.
        hint: The next step for the user; empty to suggest the closest name.
    """
    return InputError(field, got=name, expected=names_text(names), hint=hint or suggest_closest(name, names))


def names_text(names: Collection[str]) -> str:
    """Return a text with the values that a field accepts: the names, and custom components."""
    custom = "a custom one as package.module:Name"
    return f"{', '.join(names)}, or {custom}" if names else custom


def argument_error(
    field: str, make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], source: object
) -> InputError | None:
    """Return the error about the arguments of a component; None if the component accepts them.

    Args:
        field: The field that takes the component.
        make: The class or function that creates the component.
        arguments: The positional arguments.
        values: The keyword arguments.
        source: The component as the user wrote it.
    """
    try:
        signature = inspect.signature(make)
        signature.bind(*arguments, **values)
    except ValueError:
        # Some functions that are written in C have no signature.
        return None
    except TypeError as error:
        parameters = [item for item in signature.parameters.values() if item.kind is item.POSITIONAL_OR_KEYWORD]
        required = [item.name for item in parameters if item.default is item.empty]
        missing = [name for name in required[len(arguments) :] if name not in values]
        if missing:
            example = ", ".join(f"{name}=..." for name in required)
            component = make.__name__
            if isinstance(source, str):
                component = source.partition("(")[0].strip()
            problem = f"it lacks {' and '.join(missing)}"
            return InputError(field, problem, got=source, hint=f"give {component}({example})")
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [item.name for item in signature.parameters.values() if item.kind in by_name]
        allowed = ", ".join(names) or "no values"
        return InputError(field, str(error), got=source, expected=allowed)
    return None
