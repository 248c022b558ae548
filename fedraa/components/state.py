"""The state of components, which checkpoints save and resumed runs restore."""

from collections import deque
from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.errors import InputError


class Stateful:
    """A component with attributes that checkpoints save and a resumed run restores.

    `state_fields` names these attributes. A subclass names only its additional attributes. An attribute may be:

    - a number, text, None, a NumPy array, or an object with `state` and `restore`;
    - a list, deque, set or dict. The elements of a set and the keys of a dict must be numbers or text. Other items may
      be numbers, text, lists, dicts with text keys, NumPy arrays, and objects with `state` and `restore`.

    An array must always have the same shape. It is restored in place, so that views of it stay valid. Objects with
    `state` and `restore` are also restored in place, so that the same objects must exist before `restore`.

    Without `state_fields`, all attributes are saved. They must be numbers, text, lists, dicts with text keys or NumPy
    arrays. For attributes of other types, override `state` and `restore`.
    """

    state_fields: ClassVar[tuple[str, ...]]

    def state(self) -> dict[str, Any]:
        fields = _declared_fields(type(self))
        if fields is None:
            return dict(vars(self))
        return {_field_key(field): _plain_value(getattr(self, field)) for field in fields}

    def restore(self, state: dict[str, Any]) -> None:
        fields = _declared_fields(type(self))
        if fields is None:
            vars(self).update(state)
            return
        for field in fields:
            place = f"{type(self).__name__}.{field}"
            if _field_key(field) not in state:
                raise InputError("checkpoint", f"it has no value for {place}", hint="start the run again")
            setattr(self, field, _restore_value(place, getattr(self, field), state[_field_key(field)]))


def save_state(component: Any) -> dict[str, Any]:
    """Return the state of a component for a checkpoint.

    Raises InputError if a checkpoint cannot store it.
    """
    name = type(component).__name__
    with convert_errors("state", component):
        state: dict[str, Any] = component.state()
    if not isinstance(state, Mapping):
        raise InputError("state", f"{name}.state returned this value", got=state, expected="a dict")
    unfit = _describe_unfit(state)
    if unfit is not None:
        expected = "numbers, text, lists, dicts with text keys and NumPy arrays"
        hint = "define the methods state and restore"
        if isinstance(component, Stateful):
            hint = f"name the saved attributes in state_fields, or {hint}"
        raise InputError("state", f"{name} has {unfit}", expected=expected, hint=hint)
    return state


def _declared_fields(kind: type) -> list[str] | None:
    """Return the `state_fields` of a class and its base classes; None if no class declares the attribute."""
    declarations = [vars(base)["state_fields"] for base in reversed(kind.__mro__) if "state_fields" in vars(base)]
    if not declarations:
        return None
    return list(chain.from_iterable(declarations))


def _field_key(field: str) -> str:
    return field.removeprefix("_")


def _is_number_or_text(value: object) -> bool:
    return isinstance(value, int | float | str | np.integer)


def _is_component(value: object) -> bool:
    return hasattr(value, "state") and hasattr(value, "restore")


def _plain_value(value: Any) -> Any:
    """Return the value of an attribute in a form that a checkpoint can store.

    A set becomes a sorted list. A dict with keys that are not text becomes a list of pairs.
    """
    if _is_component(value):
        return save_state(value)
    if isinstance(value, set) and all(map(_is_number_or_text, value)):
        return sorted(value)
    if isinstance(value, list | tuple | deque):
        return list(map(_plain_item, value))
    if not isinstance(value, dict) or not all(map(_is_number_or_text, value)):
        return value
    items = {key: _plain_item(item) for key, item in value.items()}
    if all(isinstance(key, str) for key in value):
        return items
    return list(map(list, items.items()))


def _plain_item(item: Any) -> Any:
    if _is_component(item):
        return save_state(item)
    return item


def _restore_value(place: str, current: Any, value: Any) -> Any:
    """Return the saved value of an attribute in the type of its current value.

    Args:
        place: The class and the attribute, for errors.
        current: The current value. An array or a component is changed in place and returned.
        value: The saved value, from `_plain_value`.
    """
    if _is_component(current):
        current.restore(value)
        return current
    if isinstance(current, np.ndarray) and value is not None:
        _copy_into(place, current, value)
        return current
    if isinstance(current, np.generic):
        return type(current)(value)
    if isinstance(current, dict):
        return {key: _restored_item(current.get(key), item) for key, item in dict(value).items()}
    if isinstance(current, list | tuple):
        return type(current)(_restored_items(place, current, value))
    if isinstance(current, deque):
        return deque(_restored_items(place, current, value), current.maxlen)
    if isinstance(current, set):
        return set(value)
    # Two components must never have the same array.
    return deepcopy(value)


def _restored_items(place: str, current: Iterable[Any], value: list[Any]) -> list[Any]:
    components = [item for item in current if _is_component(item)]
    if not components:
        return deepcopy(value)
    if len(components) != len(value):
        raise _misfit_error(place, value, f"{len(components)} items")
    return [_restored_item(component, item) for component, item in zip(components, value, strict=True)]


def _restored_item(current: Any, item: Any) -> Any:
    if _is_component(current):
        current.restore(item)
        return current
    return deepcopy(item)


def _copy_into(place: str, array: npt.NDArray[Any], value: Any) -> None:
    """Copy a saved array into the array of an attribute.

    Raises InputError if the shapes or types differ.
    """
    if not isinstance(value, np.ndarray) or value.shape != array.shape or value.dtype != array.dtype:
        raise _misfit_error(place, value, f"an array of {array.dtype} {list(array.shape)}")
    array[...] = value


def _misfit_error(place: str, value: object, expected: str) -> InputError:
    return InputError(
        "checkpoint", f"{place} does not fit the run", got=value, expected=expected, hint="start the run again"
    )


def _describe_unfit(value: object) -> str | None:
    """Describe the first value that a checkpoint cannot store; None if there is none."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return f"a dict with the key {key!r}"
        return _first_unfit(value.values())
    if isinstance(value, list | tuple):
        return _first_unfit(value)
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return f"an array of {value.dtype}"
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return None
    return f"a {type(value).__name__}"


def _first_unfit(values: Iterable[object]) -> str | None:
    return next(filter(None, map(_describe_unfit, values)), None)
