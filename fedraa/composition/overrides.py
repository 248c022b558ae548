"""Set a method's values by path, such as `local.momentum`, or by shortcut.

A shortcut is an option of an experiment. `mixing=0.3` and `override={"update.mixing": 0.3}` are equivalent.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from inspect import get_annotations, isclass
from typing import Any, TypeVar, get_type_hints

from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import COMPONENT_TEXT, KIND, default_value, describe_component, is_built_in, text_of
from fedraa.errors import InputError, closest_name, suggest_closest
from fedraa.numbers import convert_numbers, to_python_value
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.schedule import SCHEDULER
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.policy import AUTO
from fedraa.submodels.policies.slices import BY_MODEL

M = TypeVar("M")

# For each shortcut, the paths that it can set. A shortcut sets only the first path that the method has.
SHORTCUTS: dict[str, tuple[str, ...]] = {
    "submodel": ("submodel",),
    "async_rule": ("update",),
    "aggregator": ("update.aggregator",),
    "server_optimizer": ("update.optimizer",),
    "weights": ("update.weights",),
    "gradient_transforms": ("local.transforms",),
    "personal_layers": ("local.personal_layers",),
    "ratios": ("submodel.ratios",),
    "capacities": ("submodel.capacities.levels", "submodel.capacities"),
    "compress": ("local.compressor",),
    "error_feedback": ("local.error_feedback",),
    "batch_size": ("local.batch_size",),
    "local_optimizer": ("local.local_optimizer",),
    "local_optimizer_state": ("local.optimizer_state",),
    "momentum": ("local.momentum",),
    "weight_decay": ("local.weight_decay",),
    "clip": ("local.clip",),
    "prox_mu": ("local.prox_mu",),
    "mixing": ("update.mixing",),
    "staleness": ("update.staleness",),
    "buffer_size": ("update.size",),
    "server_lr": ("update.optimizer.server_lr", "update.server_lr"),
    "scheduler": ("schedule.scheduler",),
    "delay_bound": ("schedule.delay_bound",),
    "participation": ("schedule.participation",),
    "next_client": ("schedule.next_client",),
    "over_selection": ("schedule.over_selection",),
    "deadline": ("schedule.deadline",),
    "late": ("schedule.late",),
    "concurrency": ("schedule.concurrency",),
    "polyak_fraction": ("schedule.polyak_fraction",),
    "updates": ("schedule.updates",),
    "rounds": ("schedule.rounds",),
}
# Each key is the path of a component that a user can replace as a whole. The value is the registry of such components.
REGISTRIES: dict[str, ComponentRegistry[Any]] = {
    "submodel": SUBMODEL,
    "update": ASYNC_RULE,
    "update.optimizer": SERVER_OPTIMIZER,
}
# Values by path, each with the option of the experiment that sets it. A user cannot set these values by path.
SET_BY_FIELDS = {
    "schedule.updates": "updates",
    "schedule.rounds": "rounds",
    "local.lr": "lr",
    "local.lr_schedule": "lr_schedule",
    "local.epochs": "local_epochs",
    "local.steps": "local_steps",
}
# These values follow from other choices or from the model, so users cannot set them.
DERIVED = {f"local.{name}" for name in ("control", "full_gradient", "squares", "adversary", "split", "min_batch")}


def find_path(method: Any, name: str) -> str | None:
    """Return the path of the value that a shortcut or a path sets; None if the method has no such value."""
    if name in SET_BY_FIELDS or name in DERIVED:
        return None
    return next((path for path in SHORTCUTS.get(name, (name,)) if _has_value(method, path)), None)


def names_that_method_lacks(method: Any, values: Mapping[str, object]) -> set[str]:
    """Return the keys of `values` that name no field of the method.

    A key is a shortcut, such as `momentum`, or a path, such as `local.momentum`.

    A component in `values`, such as another scheduler, may add fields. Keys that name its fields are not returned.
    """
    foreign = set()
    for key in sorted(values, key=_sort_key):
        path = find_path(method, key)
        if path is None:
            foreign.add(key)
        elif path in REGISTRIES:
            method = _replace_at_path(method, path, values[key], key)
    return foreign


def chosen_value(experiment: Any, name: str) -> Any:
    """Return the value that the experiment sets by a shortcut or a path; None if it sets no value."""
    value = getattr(experiment, name, None)
    if value is not None:
        return value
    paths = (path for path in SHORTCUTS.get(name, (name,)) if path in experiment.override)
    return next((experiment.override[path] for path in paths), None)


def values_by_path(method: Any) -> dict[str, Any]:
    """Return all values of the method that can be set, by path."""
    values: dict[str, Any] = {}
    for choice, value in method.choices().items():
        values |= _values_below(choice, value)
    return {path: value for path, value in values.items() if find_path(method, path) is not None}


def set_values(method: M, values: Mapping[str, object], name: str) -> M:
    """Return a copy of the method with these values.

    Args:
        method: The method.
        values: The values by shortcut, such as `momentum`, or by path, such as `local.momentum`. A component is set
            before its fields.
        name: The name of the method, for errors.

    Raises:
        InputError: The method does not have or allow a value, or a component and a shortcut set different values. The
            field of the error is the shortcut or the path.
    """
    names: dict[str, str] = {}
    for key in sorted(values, key=_sort_key):
        path = find_path(method, key)
        if path is None:
            raise _missing_value_error(method, key, values[key], name)
        if path in names:
            problem = f"{names[path]} sets the same value"
            raise InputError(key, problem, got=_shown_value(values[key]), hint="give one of the two")
        changed = _replace_at_path(method, path, values[key], key)
        owners = [owner for owner in names if owner in REGISTRIES and path.startswith(f"{owner}.")]
        # A path names a field of the component, so that it may change a value in the component's text.
        if owners and key in SHORTCUTS:
            owner = max(owners, key=len)
            before = _set_by_component(method, values[names[owner]], owner, path)
            if before not in (..., _value_at_path(changed, path)):
                problem = f"{names[owner]} {text_of(values[names[owner]])} has {_shown_value(before)}"
                raise InputError(key, problem, got=_shown_value(values[key]), hint="give one of the two")
        names[path] = key
        method = changed
    return method


def _set_by_component(method: Any, source: object, owner: str, path: str) -> Any:
    """Return the value at a path if the user's component sets it; `Ellipsis` if it is a default of the component.

    Args:
        method: The method, which has the component.
        source: The component as the user gives it.
        owner: The path of the component.
        path: The path of the value.
    """
    value = _value_at_path(method, path)
    if value in (_default_at_path(source, owner, path), _default_in_class(method, path)):
        return ...
    return value


def _value_at_path(owner: Any, path: str) -> Any:
    """Return the value at a path below a method or a component; `Ellipsis` if it has no such value."""
    for name in path.split("."):
        owner = getattr(owner, name, ...)
    return owner


def _default_in_class(method: Any, path: str) -> Any:
    """Return the default in the class of the component that has the value at a path."""
    owner, _, name = path.rpartition(".")
    return default_value(_value_at_path(method, owner), name)


def _default_at_path(source: object, owner: str, path: str) -> Any:
    """Return the value that a component has without arguments; `Ellipsis` if it needs arguments or has no such value.

    Args:
        source: The component as the user gives it.
        owner: The path of the component.
        path: The path of the value.
    """
    described = describe_component(source)
    kind = described
    if isinstance(described, Mapping):
        kind = described[KIND]
    elif match := COMPONENT_TEXT.fullmatch(str(described)):
        kind = match["kind"]
    try:
        component = REGISTRIES[owner].resolve(kind)
    except InputError:
        return ...
    return _value_at_path(component, path.removeprefix(f"{owner}."))


def _sort_key(key: str) -> tuple[int, int]:
    """Return a key that sorts components before their fields, and shortcuts in the order of `SHORTCUTS`."""
    place = len(SHORTCUTS)
    if key in SHORTCUTS:
        place = list(SHORTCUTS).index(key)
    return SHORTCUTS.get(key, (key,))[0].count("."), place


def _has_value(method: Any, path: str) -> bool:
    """Return True if the method has a value at this path, and the value can be set."""
    if path == "submodel":
        return not method.schedule.scheduled
    if path == "update":
        return bool(method.schedule.asynchronous)
    choice, *names = path.split(".")
    if choice not in method.choices() or not names:
        return False
    owner = getattr(method, choice)
    for name in names[:-1]:
        if name not in _field_names(owner):
            return False
        owner = getattr(owner, name)
    return names[-1] in _field_names(owner) and _can_be_set_whole(owner, names[-1])


def _field_names(component: object) -> list[str]:
    if not is_dataclass(component) or isinstance(component, type):
        return []
    return [field.name for field in fields(component) if field.init]


def _can_be_set_whole(owner: object, name: str) -> bool:
    """Return True if a user can replace the whole value of the field, not only fields of this value."""
    kind = _built_in_class(owner, name)
    if kind is None:
        return True
    hint = get_type_hints(kind)[name]
    return hint in (Any, bool, int, float, str) or not isclass(hint)


def _built_in_class(owner: object, name: str) -> Any:
    """Return the built-in class that declares a field; None if a custom class declares it."""
    for kind in type(owner).__mro__:
        if is_built_in(kind) and is_dataclass(kind):
            return kind if name in {field.name for field in fields(kind)} else None
        if name in get_annotations(kind):
            return None
    return None


def _values_below(path: str, value: object) -> dict[str, Any]:
    """Return a dict from paths to values: the value, and for a component also the values of all its fields."""
    values: dict[str, Any] = {path: value}
    for name in _field_names(value):
        values |= _values_below(f"{path}.{name}", getattr(value, name))
    return values


def _replace_at_path(method: Any, path: str, value: object, key: str) -> Any:
    """Return a copy of the method with another value at a path. An error names the user's `key`."""
    choice, *names = path.split(".")
    try:
        if path in REGISTRIES and not (names and value is None):
            value = REGISTRIES[path].resolve(value)
        component = value
        if names:
            component = _replace_field(getattr(method, choice), names, value)
    except InputError as error:
        raise error.with_field(_field_of_error(error, path, key)) from None
    return replace(method, **{choice: component})


def _field_of_error(error: InputError, path: str, key: str) -> str:
    """Return the field for an error about the user's setting `key`, such as `scheduler` or `scheduler.share`.

    The result is `key`. If the error is about a field of the component, a dot and this field follow.
    """
    component_name = path.rpartition(".")[2]
    if path in REGISTRIES:
        component_name = REGISTRIES[path].name
    head, dot, field = error.field.partition(".")
    if head == component_name:
        return key + dot + field
    return key


def _replace_field(owner: Any, names: list[str], value: object) -> Any:
    name, *below = names
    if below:
        return replace(owner, **{name: _replace_field(getattr(owner, name), below, value)})
    return replace(owner, **{name: _convert_value(owner, name, value)})


def _convert_value(owner: Any, name: str, value: object) -> object:
    """Return the value in the type of the field `name` of `owner`.

    A single value of a tuple field, which may also be the text `auto`, becomes a tuple.
    """
    before = getattr(owner, name)
    is_single = not isinstance(value, list | tuple) and not _is_by_model(value)
    if is_single and (isinstance(before, tuple) or _is_by_model(before)):
        value = (value,)
    kind = _built_in_class(owner, name)
    if kind is None:
        return value
    return convert_numbers({name: value}, kind, "").get(name, to_python_value(value))


def _is_by_model(value: object) -> bool:
    # Arrays and tables cannot be compared to a text.
    return isinstance(value, str) and value == BY_MODEL


def _missing_value_error(method: Any, key: str, value: object, name: str) -> InputError:
    """Return the error for a missing value, with a hint at a value that the user may mean."""
    got = _shown_value(value)
    if key in SHORTCUTS:
        return InputError(key, f"{name} has no such setting", got=got, hint=_missing_setting_hint(method, key, value))
    if key in SET_BY_FIELDS:
        return InputError(key, f"the option {SET_BY_FIELDS[key]} sets it", got=got, hint=f"give {SET_BY_FIELDS[key]}")
    if key in DERIVED:
        return InputError(key, "it is computed from other values of the method", got=got, hint="leave it out")
    known = values_by_path(method)
    owner, _, last = key.rpartition(".")
    while owner and not any(path.startswith(f"{owner}.") for path in known):
        owner = owner.rpartition(".")[0]
    near = [path for path in known if path.startswith(f"{owner}.")] or list(known)
    hint = suggest_closest(key, near)
    if not hint:
        by_last = {path.rpartition(".")[2]: path for path in known}
        path = by_last.get(closest_name(last, by_last) or "")
        hint = f"did you mean {path}?" if path else "`fedraa methods NAME` lists the values of a method"
    return InputError(key, f"{name} has no such value", got=got, expected=f"one of {', '.join(near)}", hint=hint)


def _missing_setting_hint(method: Any, name: str, value: object) -> str:
    if name == "scheduler" and str(value).lower() in SCHEDULER.hints:
        return SCHEDULER.hints[str(value).lower()]
    if name == "rounds" and method.schedule.asynchronous:
        return f"{method.name} counts updates: --updates {value}"
    if name == "updates" and not method.schedule.asynchronous:
        return f"{method.name} counts rounds: --rounds {value}"
    return "leave it out"


def _shown_value(value: object) -> object:
    if value == AUTO:
        return AUTO[0]
    if isinstance(value, tuple | list):
        return value
    return text_of(value)
