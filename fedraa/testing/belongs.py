"""The kind of a component."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedraa.components.imports import imported, is_path
from fedraa.components.text import KIND
from fedraa.errors import InputError, short_text
from fedraa.testing.kinds import KINDS, Kind

# The methods by which a kind is recognized if its registry requires none.
METHODS_OF = {
    "partitioner": ("assign",),
    "metric": ("values",),
    "staleness": (),
    "transform": ("apply",),
    "dataset": ("read",),
}


def belongs(given: object, as_: str | None = None) -> tuple[Kind, Any]:
    """Return the kind of a component that was given in any form, and the component itself.

    Raises InputError if it is not a component, or may be of several kinds and `as_` does not name one.
    """
    if as_ is not None:
        kind = KINDS.get(as_.replace("_", "-"))
        if kind is None:
            raise InputError("as", got=as_, expected=f"one of {', '.join(KINDS)}")
        return kind, kind.make(given)
    kinds = _kinds(given)
    if not kinds:
        raise InputError(
            "part",
            f"{_said(given)} is not a component",
            expected=f"package.module:Name, a name, a class or an object, of one of the kinds {', '.join(KINDS)}",
        )
    if len(kinds) > 1:
        choices = ", ".join(f"{kind.name}{kind.arguments}" for kind in kinds)
        raise InputError(
            "part", f"{_said(given)} may be a component of several kinds: {choices}", hint="say which by --as, or as_="
        )
    return kinds[0], kinds[0].make(given)


def _kinds(given: object) -> list[Kind]:
    """Return all kinds of component that the object may be."""
    text = given.get(KIND) if isinstance(given, Mapping) else given
    if not isinstance(text, str):
        return _of(given)
    path = text.partition("(")[0].strip()
    if is_path(path) and path.partition(":")[0] not in ("sample", "topk", "bernoulli"):
        return _of(imported("part", path))
    name = path.partition(":")[0]
    return [kind for kind in KINDS.values() if name in kind.seam.names()]


def _of(thing: object) -> list[Kind]:
    """Return the kinds of an object.

    The base class decides. Otherwise the kinds match whose required methods the object has, the kinds with the most
    methods first. A function may be of every kind that accepts functions.
    """
    made: type = thing if inspect.isclass(thing) else type(thing)
    if derived := [kind for kind in KINDS.values() if issubclass(made, kind.base)]:
        return derived
    able = {kind.name: needs for kind in KINDS.values() if (needs := _needs(kind)) and _can(made, needs)}
    if able:
        most = max(map(len, able.values()))
        return [KINDS[name] for name, needs in able.items() if len(needs) == most]
    if inspect.isfunction(thing) or (not inspect.isclass(thing) and callable(thing)) or "__call__" in vars(made):
        return [kind for kind in KINDS.values() if kind.arguments]
    return []


def _needs(kind: Kind) -> tuple[str, ...]:
    return METHODS_OF.get(kind.name, kind.seam.needs)


def _can(made: type, needs: tuple[str, ...]) -> bool:
    return all(callable(getattr(made, name, None)) for name in needs)


def _said(given: object) -> str:
    return given if isinstance(given, str) else getattr(given, "__qualname__", short_text(given))
