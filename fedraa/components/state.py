"""The state of a component that a checkpoint holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedraa.components.calls import calling
from fedraa.errors import InputError


class Stateful:
    """A component with attributes that checkpoints save and a resumed run restores.

    Override both methods if an attribute is not a number, text, a list, a dict with text keys or a NumPy array.
    """

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def saved(part: Any) -> dict[str, Any]:
    """Return a component's state for a checkpoint. Raise InputError if a checkpoint cannot hold it."""
    with calling("state", part):
        state: dict[str, Any] = part.state()
    if not isinstance(state, Mapping):
        raise InputError("state", f"{type(part).__name__} returned it", got=state, expected="a dict")
    if wrong := _unfit(state):
        raise InputError(
            "state",
            f"{type(part).__name__} keeps {wrong}",
            expected="numbers, text, lists, dicts with text keys and NumPy arrays",
            hint="define the methods state and restore",
        )
    return state


def _unfit(value: object) -> str | None:
    if isinstance(value, Mapping):
        keys = (f"a dict with the key {key!r}" for key in value if not isinstance(key, str))
        return next(keys, None) or next(filter(None, map(_unfit, value.values())), None)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_unfit, value)), None)
    if isinstance(value, np.ndarray | np.generic):
        return f"an array of {value.dtype}" if value.dtype.hasobject else None
    return None if value is None or isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
