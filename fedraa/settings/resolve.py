"""From an experiment to its method: the flags that concern one of the four choices replace the method's own values."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.client.local_optimizer import ADAMW_WEIGHT_DECAY, LOCAL_OPTIMIZER
from fedraa.client.local_training import Solver
from fedraa.components.field_checks import check_part
from fedraa.components.text import text_of
from fedraa.composition.compatibility import (
    can_be_spread,
    check_effects,
    check_objective,
    check_shards,
    check_terms,
    fields_without_effect,
)
from fedraa.composition.method import FLAGS, Method
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.errors import short_text
from fedraa.objectives import Classification, make_objective
from fedraa.submodels.policies.policy import AUTO, Capacities
from fedraa.submodels.policies.slices import FRAGMENT_RATIOS


def resolve(experiment: Experiment) -> Method:
    """The experiment's method with the experiment's flags in place, calibrated for classification alone.

    Raises ValueError for a flag that none of the method's choices knows, for terms that break each other, and for what
    does not go with the objective.
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
    given = _given(experiment, method)
    if experiment.fragments is not None and method.path("ratios") is None:
        raise ValueError(f"fragments: {experiment.fragments} means nothing to {experiment.method}; leave it out")
    if given.get("capacities") == "auto":
        given |= {"capacities": AUTO, "redraw": bool(given.get("redraw"))}  # which rolling submodels have on
    method = replace(method, local=solver).replaced(given, str(experiment.method))
    method = replace(method, local=with_optimizer(method.local, experiment))
    squares = method.local.squares or method.submodel.needs_squares
    method = replace(method, local=replace(method.local, split=getattr(method.submodel, "at", 0), squares=squares))
    for choice, part in method.choices().items():
        check_part(part, f"method: {experiment.method} has {choice} {type(part).__name__}")
    try:
        _ = method.local.auto
    except ValueError as error:
        raise ValueError(f"local_steps: got {short_text(method.local.steps)}; {error}") from None
    objective = make_objective(experiment.objective)
    if not isinstance(objective, Classification):
        if experiment.calibrate:
            what = f"calibrate: {experiment.calibrate:g} moves the logits of classification"
            raise ValueError(f"{what}, and {objective.name} has none; leave it out")
        method = replace(method, local=replace(method.local, calibrate=0.0))
    check_objective(experiment, method, objective)
    check_terms(str(experiment.method), method)
    check_effects(experiment, method)
    if experiment.server_shards > 1:
        check_shards(experiment, method)
    return method


def with_optimizer(local: Solver, experiment: Experiment) -> Solver:
    """Return the solver with the momentum and the weight decay that its local optimizer will use.

    Values that the optimizer names win over the method's; the user gives each value only once. A momentum of the
    method, which is one of SGD, means nothing to Adam. Raises ValueError for values that do not go together.
    """
    text = text_of(local.local_optimizer)
    if str(text).startswith("torch.optim"):
        raise ValueError(f"local_optimizer: got {text}; name sgd, adam or adamw, or give a custom LocalOptimizer")
    optimizer = LOCAL_OPTIMIZER.make(local.local_optimizer)
    if optimizer.lr is not None:
        raise ValueError(f"local_optimizer: got {text}; the rate is a field of its own, give lr {optimizer.lr:g}")
    for field in ("momentum", "weight_decay"):
        inner, outer = getattr(optimizer, field), getattr(experiment, field)
        if None not in (inner, outer) and inner != outer:
            raise ValueError(f"{field}: got {outer:g}, but local_optimizer {text} has {inner:g}; give one of the two")
    momentum, decay = optimizer.momentum, optimizer.weight_decay
    if not optimizer.has_momentum:
        if experiment.momentum:
            raise ValueError(f"momentum: {experiment.momentum:g} means nothing to local_optimizer {text}; leave it out")
        momentum = 0.0
    if decay is None and experiment.weight_decay is None and optimizer.decoupled:
        decay = ADAMW_WEIGHT_DECAY
    if momentum is not None:
        local = replace(local, momentum=momentum)
    if decay is not None:
        local = replace(local, weight_decay=decay)
    if (wrong := optimizer.check(local.momentum)) is not None:
        raise ValueError(f"local_optimizer: got {text}; {wrong}")
    if local.optimizer_state == "keep" and not optimizer.buffers(local.momentum):
        raise ValueError(
            f"local_optimizer_state: keep means nothing to {text} without momentum, which has no state; leave it out"
        )
    return local


def _task_length(experiment: Experiment) -> dict[str, Any]:
    """Return the solver's fields of how long a task is, if the experiment sets one."""
    if experiment.local_steps is not None:
        return {"epochs": Solver.epochs, "steps": experiment.local_steps}
    return {} if experiment.local_epochs is None else {"epochs": experiment.local_epochs, "steps": None}


def with_capacities(method: Method, compute: npt.NDArray[np.float64]) -> Method:
    """The method with clients' shares of the model that follow from the speeds of their devices [N], if they are to."""
    policy: Any = method.submodel
    if getattr(getattr(policy, "capacities", None), "levels", None) != AUTO:
        return method
    if policy.capacities.redraw:
        raise ValueError("redraw: capacities auto follow each client's device; leave it out")
    return replace(method, submodel=replace(policy, capacities=Capacities.following(compute, policy.shares)))


def without_foreign_flags(experiment: Experiment) -> Experiment:
    """Return the experiment without the flags that do nothing to its method, to compare methods under one command."""
    method = find(experiment.method)
    given = _given(experiment, method)
    foreign = {flag for flag in given if method.path(flag) is None}
    known = {flag: value for flag, value in given.items() if flag not in foreign and value != "auto"}
    if "ratios" in foreign:
        foreign.add("fragments")
    foreign |= fields_without_effect(experiment, method.replaced(known, str(experiment.method))).keys()
    if not can_be_spread(method):
        foreign.add("server_shards")
    return experiment.model_copy(update={flag: Experiment.model_fields[flag].default for flag in foreign})


def _given(experiment: Experiment, method: Method) -> dict[str, Any]:
    """The experiment's flags that were given, by name."""
    values = {flag: getattr(experiment, flag) for flag in FLAGS} | {"ratios": _ratios(experiment, method)}
    return {flag: value for flag, value in values.items() if value is not None}


def _ratios(experiment: Experiment, method: Method) -> tuple[float, ...] | None:
    """Of so many fragments: equal ones, if the method's own are, or else those of the table."""
    if experiment.ratios is not None or experiment.fragments is None:
        return experiment.ratios
    own = getattr(method.submodel, "ratios", ())
    if len(own) > 1 and len(set(own)) == 1:
        return (1 / experiment.fragments,) * experiment.fragments
    if experiment.fragments not in FRAGMENT_RATIOS:
        raise ValueError(
            f"fragments: there are no table ratios for {experiment.fragments} fragments, only for 1 to "
            f"{max(FRAGMENT_RATIOS)}; give --ratios"
        )
    return FRAGMENT_RATIOS[experiment.fragments]
