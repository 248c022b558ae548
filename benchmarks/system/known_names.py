"""Check the names and the numbers in the options of a measurement."""

from collections.abc import Iterable

from fedraa.errors import InputError


def refuse_unknown_names(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for the first unknown name.

    Args:
        option: The option that has the names.
        names: The names to check.
        known: All names that the option can have.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(option, got=name, expected=f"one of {', '.join(known)}")


def refuse_below_one(option: str, number: int) -> None:
    """Raise InputError if the number of an option is below 1."""
    if number < 1:
        raise InputError(option, got=number, expected="at least 1")
