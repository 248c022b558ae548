"""Errors about the component that a user gave for a field."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from fedraa.errors import InputError, suggest_closest


def unknown_component(field: str, name: str, names: Collection[str], hint: str = "") -> InputError:
    """Return the error about a name that no component of the field has.

    Args:
        field: The field that takes the component.
        name: The unknown name.
        names: The names of the components.
        hint: The next step for the user. The default is the closest name.
    """
    return InputError(field, got=name, expected=names_text(names), hint=hint or suggest_closest(name, names))


def names_text(names: Collection[str]) -> str:
    """Return the components that a field takes: the named ones, and custom ones."""
    custom = "a custom one as package.module:Name"
    return f"{', '.join(names)}, or {custom}" if names else custom


def argument_error(
    field: str, make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], given: object
) -> InputError | None:
    """Return the error about the arguments of a component, or None if its signature takes them.

    Args:
        field: The field that takes the component.
        make: The class or the function that makes it.
        arguments: The positional values.
        values: The values by their names.
        given: The component in the form that the user wrote.
    """
    try:
        signature = inspect.signature(make)
        signature.bind(*arguments, **values)
    except ValueError:
        # Some code in C has no signature.
        return None
    except TypeError as error:
        named = [each for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        needed = [each.name for each in named if each.default is each.empty]
        if lacking := [name for name in needed[len(arguments) :] if name not in values]:
            example = ", ".join(f"{name}=..." for name in needed)
            name = given.partition("(")[0].strip() if isinstance(given, str) else make.__name__
            return InputError(field, f"it lacks {' and '.join(lacking)}", got=given, hint=f"give {name}({example})")
        allowed = ", ".join(each.name for each in named) or "no values"
        return InputError(field, str(error), got=given, expected=allowed)
    return None
