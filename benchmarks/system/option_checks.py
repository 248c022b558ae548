"""Check the options of a measurement before it begins."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedraa.errors import InputError
from fedraa.report.cells import check_nonempty_and_unique


def refuse_unknown_names(option: str, names: Sequence[str], known: Iterable[str]) -> None:
    """Raise InputError if there are no names, a repeated name, or an unknown name.

    Args:
        option: The option that has the names.
        names: The names to check.
        known: All names that the option can have.
    """
    check_nonempty_and_unique(**{option: names})
    known = list(known)
    for name in names:
        if name not in known:
            raise InputError(option, got=name, expected=f"one of {', '.join(known)}")


def refuse_below(least: int, **options: int | tuple[int, ...]) -> None:
    """Raise InputError if an option is a number below `least`, a list with such a number, or an empty list."""
    for option, value in options.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or min(numbers) < least:
            raise InputError(option, got=value, expected=f"at least {least}")


def refuse_missing_folder(out: Path) -> None:
    """Raise InputError if the folder of the file does not exist."""
    if not out.parent.is_dir():
        raise InputError("out", f"there is no folder {out.parent}", hint="make this folder, or choose another")
