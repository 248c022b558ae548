"""Resolution of an experiment to its method: flags about one of the four choices replace the method's values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.client.local_optimizer import ADAMW_WEIGHT_DECAY, LOCAL_OPTIMIZER
from fedraa.client.local_training import LocalTraining
from fedraa.components.field_checks import check_part
from fedraa.components.text import text_of
from fedraa.composition.compatibility import (
    can_be_spread,
    check_objective,
    check_shards,
    check_terms,
    fields_without_effect,
)
from fedraa.composition.method import FLAGS, Method
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.config.sections import LocalOptions, MethodOptions
from fedraa.errors import InputError, without_effect
from fedraa.objectives import Classification, make_objective
from fedraa.submodels.policies.policy import AUTO, Capacities
from fedraa.submodels.policies.slices import FRAGMENT_RATIOS


def resolve(experiment: Experiment) -> Method:
    """Return the experiment's method with the experiment's flags in place. Only classification is calibrated.

    Raises InputError for a flag that none of the method's choices has, for terms that exclude each other, and for a
    method that cannot train the objective.
    """
    method = find(experiment.method)
    solver = replace(
        method.local,
        lr=experiment.lr,
        lr_schedule=experiment.lr_schedule,
        batch_size=experiment.batch_size,
        **_task_length(experiment),
        compress=experiment.compress,
    )
    given = _given(dict(experiment), _ratios(experiment, method))
    if experiment.fragments is not None and method.path("ratios") is None:
        raise without_effect("fragments", experiment.fragments, str(experiment.method))
    if given.get("capacities") == "auto":
        # Rolling submodels draw capacities again by default.
        given |= {"capacities": AUTO, "redraw": bool(given.get("redraw"))}
    method = replace(method, local=solver).replaced(given, str(experiment.method))
    method = replace(method, local=with_optimizer(method.local, experiment))
    squares = method.local.squares or method.submodel.needs_squares
    method = replace(method, local=replace(method.local, split=getattr(method.submodel, "at", 0), squares=squares))
    for choice, part in method.choices().items():
        check_part(part, f"method.{choice}")
    # The property raises an InputError if it cannot read the steps.
    _ = method.local.auto
    objective = make_objective(experiment.objective)
    if not isinstance(objective, Classification):
        if experiment.calibrate:
            raise without_effect("calibrate", experiment.calibrate, f"{objective.name}, which has no logits of labels")
        method = replace(method, local=replace(method.local, calibrate=0.0))
    check_objective(str(experiment.method), method, objective, stack=experiment.stack)
    check_terms(str(experiment.method), method)
    for field, why in fields_without_effect(experiment, method).items():
        raise without_effect(field, text_of(getattr(experiment, field)), why)
    if experiment.server_shards > 1:
        check_shards(str(experiment.method), method, experiment.server_shards)
    return method


def with_optimizer(local: LocalTraining, options: LocalOptions) -> LocalTraining:
    """Return the solver with the momentum and the weight decay that its local optimizer will use.

    The optimizer's values replace the method's. A method's momentum is for SGD and has no effect on Adam. Raises
    InputError for values that exclude each other, and for a value that is set twice.
    """
    text = text_of(local.local_optimizer)
    if str(text).startswith("torch.optim"):
        raise InputError("local_optimizer", got=text, expected="sgd, adam, adamw, or a custom LocalOptimizer")
    optimizer = LOCAL_OPTIMIZER.resolve(local.local_optimizer)
    if optimizer.lr is not None:
        raise InputError("local_optimizer.lr", got=optimizer.lr, hint=f"leave it out, and give lr {optimizer.lr:g}")
    for field in ("momentum", "weight_decay"):
        inner, outer = getattr(optimizer, field), getattr(options, field)
        if None not in (inner, outer) and inner != outer:
            problem = f"local_optimizer {text} has {inner:g}"
            raise InputError(field, problem, got=outer, hint="give one of the two")
    momentum, decay = optimizer.momentum, optimizer.weight_decay
    if not optimizer.has_momentum:
        if options.momentum:
            raise without_effect("momentum", options.momentum, f"local_optimizer {text}")
        momentum = 0.0
    if decay is None and options.weight_decay is None and optimizer.decoupled:
        decay = ADAMW_WEIGHT_DECAY
    if momentum is not None:
        local = replace(local, momentum=momentum)
    if decay is not None:
        local = replace(local, weight_decay=decay)
    if (wrong := optimizer.check(local.momentum)) is not None:
        raise InputError("local_optimizer", wrong, got=text)
    if local.optimizer_state == "keep" and not optimizer.buffers(local.momentum):
        beside = f"{text} without momentum, which has no state"
        raise without_effect("local_optimizer_state", local.optimizer_state, beside)
    return local


def _task_length(options: LocalOptions) -> dict[str, Any]:
    """Return the solver's fields of the length of a task, if the options set one."""
    if options.local_steps is not None:
        return {"epochs": LocalTraining.epochs, "steps": options.local_steps}
    return {} if options.local_epochs is None else {"epochs": options.local_epochs, "steps": None}


def with_capacities(method: Method, compute: npt.NDArray[np.float64]) -> Method:
    """Return the method with `auto` capacities replaced by shares that follow from the speeds of the devices [N]."""
    policy: Any = method.submodel
    if getattr(getattr(policy, "capacities", None), "levels", None) != AUTO:
        return method
    if policy.capacities.redraw:
        raise without_effect("redraw", True, "capacities auto, which follow each client's device")
    return replace(method, submodel=replace(policy, capacities=Capacities.following(compute, policy.shares)))


def without_foreign_flags(experiment: Experiment) -> Experiment:
    """Return the experiment without the flags that have no effect on its method, to compare methods by one command."""
    method = find(experiment.method)
    given = _given(dict(experiment), _ratios(experiment, method))
    foreign = {flag for flag in given if method.path(flag) is None}
    known = {flag: value for flag, value in given.items() if flag not in foreign and value != "auto"}
    if "ratios" in foreign:
        foreign.add("fragments")
    foreign |= fields_without_effect(experiment, method.replaced(known, str(experiment.method))).keys()
    if not can_be_spread(method):
        foreign.add("server_shards")
    return experiment.model_copy(update={flag: Experiment.model_fields[flag].default for flag in foreign})


def _given(fields: Mapping[str, Any], ratios: tuple[float, ...] | None) -> dict[str, Any]:
    """Return the flags about the method that are set, from the fields of an experiment and the resolved ratios."""
    values = {flag: fields[flag] for flag in FLAGS} | {"ratios": ratios}
    return {flag: value for flag, value in values.items() if value is not None}


def _ratios(options: MethodOptions, method: Method) -> tuple[float, ...] | None:
    """Return the ratios for the number of fragments: equal like the method's, or those of the table."""
    if options.ratios is not None or options.fragments is None:
        return options.ratios
    own = getattr(method.submodel, "ratios", ())
    if len(own) > 1 and len(set(own)) == 1:
        return (1 / options.fragments,) * options.fragments
    if options.fragments not in FRAGMENT_RATIOS:
        expected = f"a number from 1 to {max(FRAGMENT_RATIOS)}, for which the table has ratios"
        raise InputError("fragments", got=options.fragments, expected=expected, hint="give --ratios for others")
    return FRAGMENT_RATIOS[options.fragments]
