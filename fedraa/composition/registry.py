"""Register a method, find it by name, and cross two methods.

The crossing `a+b` has the submodels of method a, and the local training and server step of method b (SubDisMO, Table
1). If method a is asynchronous, the crossing has the submodels and the server step of a, and the local training of b.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_optimizer import LocalOptimizer
from fedraa.client.local_training import LocalTraining
from fedraa.components.imports import import_object, is_path
from fedraa.components.registry import load_plugins
from fedraa.components.text import is_built_in, rebuild_component
from fedraa.composition.method import Method, PaperSettings
from fedraa.errors import InputError, short_text, suggest_closest
from fedraa.server.async_rule import AsyncRule
from fedraa.server.optimizers import ServerOptimizer
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean
from fedraa.server.schedule import Schedule
from fedraa.submodels.policies.policy import Capacities, SubmodelPolicy
from fedraa.submodels.policies.slices import Full

_registered: dict[str, Method] = {}
# All objects in a method's description are instances of these classes or of their subclasses.
_BASES = (
    *(Method, PaperSettings, LocalTraining, LocalOptimizer, LocalAlgorithm, Capacities, SubmodelPolicy),
    *(AsyncRule, Mean, Aggregator, ServerOptimizer, RoundState, Schedule),
)


def register(method: Method) -> Method:
    """Register a method under its name, which must be new, and return the method."""
    assert method.name not in _registered, f"method: the name {method.name} is registered twice"
    _registered[method.name] = method
    return method


def list_methods() -> Mapping[str, Method]:
    """Return all registered methods by name, sorted by family.

    Asynchronous methods come before methods in rounds. In each of these two groups, methods with fragments come
    first, then methods that train the whole model, then methods with sampled submodels. A variant follows its method.
    """
    load_plugins()
    roots = [method for method in _registered.values() if not method.variant_of]
    ordered: dict[str, Method] = {}
    for root in sorted(roots, key=_family_rank):
        variants = [method for method in _registered.values() if method.variant_of == root.name]
        ordered |= {method.name: method for method in (root, *variants)}
    return MappingProxyType(ordered)


def _family_rank(method: Method) -> tuple[bool, bool, bool]:
    return not method.asynchronous, not method.submodel.scheduled, not method.submodel.whole


@cache
def component_classes() -> dict[str, Any]:
    """Return the built-in classes of the components of methods, by class name.

    config.json names these classes.
    """
    load_plugins()
    classes: dict[str, Any] = {}
    waiting = list(_BASES)
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if is_built_in(kind):
            classes[kind.__name__] = kind
    return classes


def find_method(source: Any) -> Method:
    """Return the method that `source` describes.

    Args:
        source: A name, an import path, `a+b` for a combination of two methods, a Method, or its JSON description.

    Raises InputError if there is no such method.
    """
    if isinstance(source, Method):
        return source
    if not isinstance(source, str):
        method = rebuild_component("method", source, component_classes())
        if not isinstance(method, Method):
            raise InputError("method", got=source, expected="a name, two names as in fedasync+ditto, or a Method")
        return method
    base, plus, other = source.partition("+")
    method = _find_by_name(base)
    if not plus:
        return method
    if "+" in other:
        raise InputError("method", got=source, expected="at most two methods, as in fedasync+ditto")
    return cross_methods(source, method, _find_by_name(other))


def _find_by_name(name: str) -> Method:
    """Return the method with a registered name or at an import path `package.module:NAME`."""
    load_plugins()
    if name in _registered:
        return _registered[name]
    if not is_path(name):
        # Unlike `Path.is_dir`, this function returns False for a name that is too long for a path.
        if "/" in name and os.path.isdir(name):
            hint = f"for runs that have ended: fedraa report {name}"
            raise InputError("method", "it is a folder", got=name, expected="a method", hint=hint)
        registered = list_methods()
        suggestion = suggest_closest(name, registered)
        names = "a name from `fedraa methods`" if suggestion else f"one of {', '.join(registered)}"
        expected = f"{names}, or a custom one as package.module:NAME"
        raise InputError("method", got=name, expected=expected, hint=suggestion)
    method = import_object("method", name)
    if not isinstance(method, Method):
        expected = "a Method, such as fedraa.method(...).replace(...)"
        raise InputError("method", f"it is {short_text(method)}", got=name, expected=expected)
    return method


def cross_methods(name: str, base: Method, other: Method) -> Method:
    """Return the crossing of two methods.

    It has the submodels and the aggregator of `base`, and the local training and the server step of `other`. If
    `base` is asynchronous, the crossing has the server of `base`.

    Args:
        name: The name of the crossing, `a+b`.
        base: An asynchronous method, or a method in rounds in which clients train submodels.
        other: A method in rounds in which clients train the whole model.

    Raises:
        InputError: The methods cannot be crossed.
    """
    if base.asynchronous:
        return _cross_asynchronous(name, base, other)
    submodel_update = base.update
    step_update = other.update
    if not (isinstance(submodel_update, Mean) and isinstance(step_update, Mean)):
        expected = "two methods in rounds that average the deltas of clients"
        if other.asynchronous:
            expected = "a method in rounds after the `+`, as in fedasync+ditto; only the first may be asynchronous"
        raise InputError("method", got=name, expected=expected)
    if other.submodel != Full() or base.submodel == Full():
        raise InputError("method", got=name, expected="A+B, where A trains submodels and B trains the whole model")
    if type(step_update.resolve_aggregator()) is not CoverageMean:
        problem = f"it would have the aggregator of {base.name}, but {other.name} needs another aggregator"
        raise InputError("method", problem, got=name, hint=f"give another method than {other.name}")
    if submodel_update.resolve_aggregator().corrects and step_update.auxiliary.corrects:
        problem = f"{base.name} and {other.name} would both correct every delta"
        raise InputError("method", problem, got=name, hint=f"give another method than {other.name}")
    return replace(
        base,
        name=name,
        paper=f"{base.paper} + {other.paper}",
        local=replace(other.local, label_masked=base.local.label_masked, split=base.local.split),
        update=replace(submodel_update, optimizer=step_update.resolve_optimizer(), auxiliary=step_update.auxiliary),
        paper_settings=other.paper_settings,
    )


def _cross_asynchronous(name: str, base: Method, other: Method) -> Method:
    """Return the asynchronous method `base` with the local training of `other`, which works in rounds."""
    update = other.update
    if not isinstance(update, Mean) or update != Mean(weights=update.weights) or other.submodel != Full():
        expected = "A+B, where A is asynchronous and B is in rounds with the server of fedavg, such as fedasync+ditto"
        raise InputError("method", got=name, expected=expected)
    if base.local.algorithm != LocalTraining().algorithm:
        problem = f"the server of {base.name} needs the local training of {base.name}"
        raise InputError("method", problem, got=name, hint="give another asynchronous method, such as fedasync")
    local = replace(other.local, label_masked=base.local.label_masked, split=base.local.split)
    return replace(base, name=name, paper=f"{base.paper} + {other.paper}", local=local, paper_settings=None)
