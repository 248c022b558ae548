"""Detection of the kind of a component, such as scheduler or aggregator."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.components.imports import import_object, is_path
from fedraa.components.text import KIND
from fedraa.composition.registry import list_methods
from fedraa.errors import InputError, short_text
from fedraa.server.round_state import RoundState
from fedraa.testing.kinds import KINDS, Kind

# By default, an object is a component of a kind if it has the methods that the kind's registry requires. The
# registries of the following kinds require no methods, so the methods in this table are used instead.
METHODS_OF = {
    "partitioner": ("assign",),
    "metric": ("values",),
    "staleness": (),
    "transform": ("apply",),
    "dataset": ("read",),
}


def identify_component(component: object, as_: str | None = None) -> tuple[Kind, Any]:
    """Return the kind of a component, and the component as an object.

    Args:
        component: An object, a class, a function or text.
        as_: The name of the kind. Needed only if the component may be of several kinds.

    Raises:
        InputError: `component` is no component, or it may be of several kinds and `as_` is None.
    """
    if as_ is not None:
        kind = KINDS.get(as_.replace("_", "-"))
        if kind is None:
            raise InputError("as", got=as_, expected=f"one of {', '.join(KINDS)}")
        return kind, kind.make(component)
    kinds = _possible_kinds(component)
    if not kinds:
        raise InputError(
            "component",
            f"{_describe_object(component)} is not a component",
            expected=f"package.module:Name, a name, a class or an object, of one of the kinds {', '.join(KINDS)}",
        )
    if len(kinds) > 1:
        choices = ", ".join(f"{kind.name}{kind.arguments}" for kind in kinds)
        raise InputError(
            "component",
            f"{_describe_object(component)} may be a component of several kinds: {choices}",
            hint="name its kind with --as, or with as_=",
        )
    return kinds[0], kinds[0].make(component)


def _possible_kinds(component: object) -> list[Kind]:
    text = component
    if isinstance(component, Mapping):
        text = component.get(KIND)
    if not isinstance(text, str):
        return _kinds_of_object(component)
    path = text.partition("(")[0].strip()
    if is_path(path) and path.partition(":")[0] not in ("sample", "topk", "randomk", "qsgd", "bernoulli"):
        return _kinds_of_object(import_object("component", path))
    name = path.partition(":")[0]
    kinds = [kind for kind in KINDS.values() if name in kind.registry.names()]
    if not kinds and name in list_methods():
        return [KINDS["method"]]
    return kinds


def _kinds_of_object(thing: object) -> list[Kind]:
    """Return the kinds of components that an object may be.

    An object of a kind's base class is of this kind. Any other object is of a kind if it has the methods that the kind
    requires. If it has the methods of several kinds, the kinds that require the most methods are returned. A function
    may be of every kind that accepts functions. Raises InputError if the object is a LocalAlgorithm or a RoundState,
    which run only within a method.
    """
    owner: type = thing if inspect.isclass(thing) else type(thing)
    for base in (LocalAlgorithm, RoundState):
        if issubclass(owner, base):
            problem = f"{owner.__qualname__} is a {base.__name__}, which runs only within a method"
            raise InputError("component", problem, hint="check the method that uses it, such as my_ext:METHOD")
    derived = [kind for kind in KINDS.values() if issubclass(owner, kind.base)]
    if derived:
        return derived
    required = {kind.name: _required_methods(kind) for kind in KINDS.values()}
    able = {name: needs for name, needs in required.items() if needs and _has_methods(owner, needs)}
    if able:
        longest = max(map(len, able.values()))
        return [KINDS[name] for name, needs in able.items() if len(needs) == longest]
    if inspect.isfunction(thing) or (not inspect.isclass(thing) and callable(thing)) or "__call__" in vars(owner):
        return [kind for kind in KINDS.values() if kind.arguments]
    return []


def _required_methods(kind: Kind) -> tuple[str, ...]:
    return METHODS_OF.get(kind.name, kind.registry.needs)


def _has_methods(owner: type, needs: tuple[str, ...]) -> bool:
    return all(callable(getattr(owner, name, None)) for name in needs)


def _describe_object(component: object) -> str:
    if isinstance(component, str):
        return component
    return getattr(component, "__qualname__", short_text(component))
