"""The method of an experiment, with the values that the experiment sets in place of the defaults."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.client.local_optimizer import ADAMW_WEIGHT_DECAY, LOCAL_OPTIMIZER
from fedraa.client.local_training import LocalTraining
from fedraa.components.calls import convert_errors
from fedraa.components.field_checks import check_component_fields
from fedraa.components.text import text_of
from fedraa.composition.compatibility import (
    can_be_spread,
    check_objective,
    check_personal,
    check_shards,
    check_terms,
    check_votes,
    fields_without_effect,
)
from fedraa.composition.method import Method
from fedraa.composition.overrides import SHORTCUTS, chosen_value, names_that_method_lacks, set_values
from fedraa.composition.private_methods import check_privacy
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.config.sections import LocalOptions, MethodOptions
from fedraa.errors import InputError, no_effect_error
from fedraa.objectives import Classification, make_objective
from fedraa.submodels.policies.policy import AUTO, Capacities
from fedraa.submodels.policies.slices import BY_MODEL, FRAGMENT_RATIOS, LayerCut

CALIBRATION = "local.logit_calibration"
CAPACITIES = "submodel.capacities.levels"
REDRAW = "submodel.capacities.redraw"


def resolve_method(experiment: Experiment) -> Method:
    """Return the experiment's method with the values that the experiment sets.

    Raises InputError if the experiment sets a value that the method does not have, if two values exclude each other,
    or if the method cannot train the objective.
    """
    method = find_method(experiment.method)
    local = replace(method.local, **_learning_rate(experiment), **_task_length(experiment))
    values = values_set(experiment, method)
    if experiment.fragments is not None and method.path("ratios") is None:
        raise no_effect_error("fragments", experiment.fragments, str(experiment.method))
    method = set_values(replace(method, local=local), _with_auto_capacities(values), str(experiment.method))
    momentum, weight_decay = chosen_value(experiment, "momentum"), chosen_value(experiment, "weight_decay")
    method = replace(method, local=with_optimizer(method.local, momentum=momentum, weight_decay=weight_decay))
    squares = method.local.squares or method.submodel.needs_squares
    layers = method.submodel.layers if isinstance(method.submodel, LayerCut) else 0
    method = replace(method, local=replace(method.local, split=layers, squares=squares))
    for choice, part in method.choices().items():
        check_component_fields(part, f"method.{choice}")
    # The property raises InputError if `steps` is an unknown text.
    _ = method.local.auto
    objective = make_objective(experiment.objective)
    if not isinstance(objective, Classification):
        if experiment.override.get(CALIBRATION):
            beside = f"{objective.name}, which has no logits of labels"
            raise no_effect_error(CALIBRATION, experiment.override[CALIBRATION], beside)
        method = replace(method, local=replace(method.local, logit_calibration=0.0))
    check_objective(str(experiment.method), method, objective, vmap_batch=experiment.vmap_batch)
    check_terms(str(experiment.method), method)
    check_votes(experiment, method)
    check_privacy(experiment, method)
    check_personal(str(experiment.method), method, server_shards=experiment.server_shards)
    for name, why in fields_without_effect(experiment, method).items():
        value = experiment.override[name] if name in experiment.override else getattr(experiment, name)
        raise no_effect_error(name, text_of(value), why)
    if experiment.server_shards > 1:
        check_shards(str(experiment.method), method, experiment.server_shards)
    return method


def _learning_rate(options: LocalOptions) -> dict[str, Any]:
    """Return the fields for the learning rate and its schedule, if the options set them."""
    values: dict[str, Any] = {}
    if options.lr is not None:
        values = {"lr": options.lr, "lr_schedule": "constant"}
    if options.lr_schedule is not None:
        values["lr_schedule"] = options.lr_schedule
    return values


def with_optimizer(local: LocalTraining, *, momentum: float | None, weight_decay: float | None) -> LocalTraining:
    """Return the settings with the momentum and the weight decay that the local optimizer uses.

    The optimizer's values replace the method's, because a momentum for SGD has no effect on Adam.

    Args:
        local: The settings of local training.
        momentum: The momentum that the experiment sets, or None.
        weight_decay: The weight decay that the experiment sets, or None.

    Raises:
        InputError: Values exclude each other, or a value is set twice.
    """
    text = text_of(local.local_optimizer)
    if str(text).startswith("torch.optim"):
        raise InputError("local_optimizer", got=text, expected="a name such as adam, or a custom LocalOptimizer")
    optimizer = LOCAL_OPTIMIZER.resolve(local.local_optimizer)
    if optimizer.lr is not None:
        raise InputError(
            "local_optimizer.lr", got=optimizer.lr, hint=f"leave it out, and set the field lr to {optimizer.lr:g}"
        )
    for field, outer in (("momentum", momentum), ("weight_decay", weight_decay)):
        inner = getattr(optimizer, field)
        if None not in (inner, outer) and inner != outer:
            raise InputError(field, f"local_optimizer {text} has {inner:g}", got=outer, hint="give one of the two")
    if optimizer.has_momentum:
        new_momentum = optimizer.momentum
    elif momentum:
        raise no_effect_error("momentum", momentum, f"local_optimizer {text}")
    else:
        new_momentum = 0.0
    new_decay = optimizer.weight_decay
    if new_decay is None and weight_decay is None and optimizer.decoupled:
        new_decay = ADAMW_WEIGHT_DECAY
    if new_momentum is not None:
        local = replace(local, momentum=new_momentum)
    if new_decay is not None:
        local = replace(local, weight_decay=new_decay)
    with convert_errors("local_optimizer", optimizer):
        problem = optimizer.check(local.momentum)
        names: object = optimizer.buffers(local.momentum)
    if isinstance(names, str):
        wrong = f"{type(optimizer).__qualname__}.buffers returned a text"
        raise InputError("local_optimizer", wrong, got=names, expected="a tuple of names", hint=f"return ({names!r},)")
    if problem is not None:
        raise InputError("local_optimizer", problem, got=text)
    if local.optimizer_state == "keep" and not optimizer.kept(local.momentum, 1):
        beside = f"{text} without momentum, which has no state"
        raise no_effect_error("local_optimizer_state", local.optimizer_state, beside)
    return local


def _task_length(options: LocalOptions) -> dict[str, Any]:
    """Return the fields `epochs` and `steps` of local training. The result is empty if no option sets the length."""
    if options.local_steps is not None:
        return {"epochs": LocalTraining.epochs, "steps": options.local_steps}
    if options.local_epochs is not None:
        return {"epochs": options.local_epochs, "steps": None}
    return {}


def with_capacities(method: Method, compute: npt.NDArray[np.float64]) -> Method:
    """Return the method with `auto` capacities replaced by capacities for the devices' speeds [N]."""
    policy: Any = method.submodel
    if getattr(getattr(policy, "capacities", None), "levels", None) != AUTO:
        return method
    if policy.capacities.redraw:
        raise no_effect_error(REDRAW, True, "capacities auto, which follow each client's device")
    return replace(method, submodel=replace(policy, capacities=Capacities.from_speeds(compute, policy.shares)))


def drop_unused_options(experiment: Experiment) -> Experiment:
    """Return the experiment without options that have no effect on its method."""
    method = find_method(experiment.method)
    values = values_set(experiment, method)
    foreign = names_that_method_lacks(method, values)
    known = {name: value for name, value in values.items() if name not in foreign and value != "auto"}
    if "ratios" in foreign:
        foreign.add("fragments")
    foreign |= fields_without_effect(experiment, set_values(method, known, str(experiment.method))).keys()
    if not can_be_spread(method):
        foreign.add("server_shards")
    fields = {name: Experiment.model_fields[name].default for name in foreign if name in Experiment.model_fields}
    override = {path: value for path, value in experiment.override.items() if path not in foreign}
    return experiment.model_copy(update={**fields, "override": override})


def values_set(experiment: Experiment, method: Method) -> dict[str, Any]:
    """Return the values that the experiment sets in place of the method's, by option name or path."""
    values = {name: getattr(experiment, name) for name in SHORTCUTS} | {"ratios": _fragment_ratios(experiment, method)}
    override: dict[str, Any] = experiment.override
    return {name: value for name, value in values.items() if value is not None} | override


def _with_auto_capacities(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, with the placeholder `AUTO` in place of capacities that are the text "auto".

    With automatic capacities, a client has the same capacity in all rounds. The default of the setting `REDRAW`, which
    draws new capacities in each round, therefore becomes False.
    """
    auto = {name: AUTO for name in ("capacities", CAPACITIES) if values.get(name) == "auto"}
    if not auto:
        return values
    return {REDRAW: False, **values, **auto}


def _fragment_ratios(options: MethodOptions, method: Method) -> tuple[float, ...] | None:
    """Return the size ratios of the fragments, such as (0.1, 0.2, 0.3, 0.4); None if no option sets them.

    If the user gives only the number of fragments, the ratios depend on the method's default ratios. If those are
    equal, the result has equal ratios. Otherwise it is an entry of `FRAGMENT_RATIOS`.
    """
    if options.ratios is not None or options.fragments is None:
        return options.ratios
    own = getattr(method.submodel, "ratios", ())
    if own == BY_MODEL or (len(own) > 1 and len(set(own)) == 1):
        return (1 / options.fragments,) * options.fragments
    if options.fragments not in FRAGMENT_RATIOS:
        expected = f"a number from 1 to {max(FRAGMENT_RATIOS)}, for which there are default ratios"
        raise InputError("fragments", got=options.fragments, expected=expected, hint="for more fragments give --ratios")
    return FRAGMENT_RATIOS[options.fragments]
