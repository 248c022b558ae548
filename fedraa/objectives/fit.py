"""Creation of an objective, and the check that a model fits it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.errors import InputError
from fedraa.objectives.builtin import OBJECTIVE
from fedraa.objectives.metric_spec import TAKEN_NAMES
from fedraa.objectives.objective import Objective


def make_objective(description: object) -> Objective:
    """Return the objective that a name, an import path or an object describes.

    Raises InputError if the objective is malformed.
    """
    objective = OBJECTIVE.resolve(description)
    if not isinstance(objective, Objective):
        hint = "derive its class from fedraa.Objective"
        raise InputError("objective", got=objective, expected="an Objective", hint=hint)
    field = f"objective: {objective.name}.better"
    if not isinstance(objective.better, Mapping):
        raise InputError(field, got=objective.better, expected="a dict of names with max or min")
    for name, way in objective.better.items():
        if way not in ("max", "min") or not isinstance(name, str) or not name.isidentifier():
            raise InputError(field, got={name: way}, expected="names with max or min")
        if name in TAKEN_NAMES:
            raise InputError(field, f"the name {name} is taken", hint="choose another name")
    if objective.main not in ("loss", *objective.better):
        expected = f"one of its metrics {', '.join(('loss', *objective.better))}"
        raise InputError(f"objective: {objective.name}.main", got=objective.main, expected=expected)
    return objective


def describe_misfit(objective: Objective, result: Any, targets: Tensor, classes: int) -> str | None:
    """Return the reason why a model's result does not fit the targets, as the end of a sentence; None if it fits.

    Args:
        objective: The objective.
        result: The result of the model for a batch.
        targets: The targets of the batch.
        classes: The number of classes.

    Raises:
        InputError: A method of a custom objective failed or returned a malformed result.
    """
    try:
        outputs = objective.outputs(result)
    except TypeError as error:
        form = objective.expected_outputs(torch.zeros(0), targets, classes) or "a tensor"
        named = "a dict or a dataclass that has them as `logits` or `out`"
        return f"returns {error} for a batch; expected {form}, or {named}"
    wanted = objective.expected_outputs(outputs, targets, classes)
    if wanted is not None:
        return f"returns {list(outputs.shape)} for a batch; expected {wanted}"
    if not outputs.is_floating_point():
        return f"returns {str(outputs.dtype).removeprefix('torch.')} for a batch; expected float32"
    _try_methods(objective, result, outputs, targets)
    return None


def _try_methods(objective: Objective, result: Any, outputs: Tensor, targets: Tensor) -> None:
    """Call every method of the objective once, and check its result.

    Args:
        objective: The objective.
        result: The result of the model for a batch.
        outputs: The main output in this result.
        targets: The targets of the batch.

    Raises:
        InputError: A result is malformed.
    """
    shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
    field = f"objective: {objective.name}"
    with convert_errors("objective", objective):
        _check_losses(objective, outputs, targets)
        loss = objective.training_loss(result, outputs, targets)
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            raise InputError(f"{field} loss", got=loss, expected=f"one number for {shapes}")
        if outputs.isfinite().all() and not loss.isfinite():
            raise InputError(f"{field} loss", got=float(loss), expected=f"a finite number for finite {shapes}")
        _try_to_differentiate(objective, outputs, targets)
        taken = {"loss", "count"} & objective.measured(outputs, targets).keys()
        if taken:
            problem = "`metrics` gets the sum of the losses as loss, and their number as count"
            raise InputError(f"{field} measured", problem, got=sorted(taken), hint="choose another name")
        sums = {name: values.cpu() for name, values in objective.sums(outputs, targets).items()}
        for name, values in sums.items():
            if values.shape[:1] != targets.shape[:1]:
                expected = f"the shape [b] or [b, k] for {shapes}"
                raise InputError(f"{field} measured {name}", got=values, expected=expected)
        if type(objective).metrics is Objective.metrics and not sums.keys() >= objective.better.keys():
            expected = f"only names of measured values: {', '.join(sums)}"
            raise InputError(f"{field}.better", got=sorted(objective.better.keys() - sums.keys()), expected=expected)
        metrics = objective.metrics({name: values.sum(0).numpy() for name, values in sums.items()})
        if metrics.keys() != objective.better.keys():
            expected = f"the names in better, {', '.join(objective.better)}"
            raise InputError(f"{field} metrics", got=list(metrics), expected=expected)
        for name, value in metrics.items():
            if not isinstance(value, int | float):
                raise InputError(f"{field} {name}", got=value, expected="a number")


def _check_losses(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError if `losses` does not return a loss for each sample, or for each position of each sample."""
    losses = objective.losses(outputs, targets)
    shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
    field = f"objective: {objective.name} losses"
    if not isinstance(losses, Tensor) or losses.shape[:1] != targets.shape[:1]:
        raise InputError(field, got=losses, expected=f"a loss for each sample, for {shapes}")
    # Outputs [b, 1] minus targets [b] are [b, b]: the second dimension then depends on the number of samples.
    if losses.ndim > 1 and objective.losses(outputs[:1], targets[:1]).shape[1:] != losses.shape[1:]:
        hint = "give both the same shape, as in outputs.squeeze(1)"
        raise InputError(field, got=losses, expected=f"a loss for each sample, for {shapes}", hint=hint)


def _try_to_differentiate(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    with torch.inference_mode(mode=False), torch.enable_grad():
        if not objective.loss(outputs.detach().clone().requires_grad_(), targets.clone()).requires_grad:
            problem = "it has no gradient"
            raise InputError(f"objective: {objective.name} loss", problem, hint="compute it without detach")
