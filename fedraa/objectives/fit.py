"""An objective as it was given, and whether a model fits it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedraa.components.calls import calling
from fedraa.errors import short_text
from fedraa.objectives.builtin import OBJECTIVE
from fedraa.objectives.objective import Objective


def make_objective(given: object) -> Objective:
    """The objective of that name, import path or object; ValueError with one sentence."""
    made = OBJECTIVE.make(given)
    if not isinstance(made, Objective):
        raise ValueError(f"objective: {short_text(made)} is no Objective; derive its class from fedraa.Objective")
    if not isinstance(made.better, Mapping):
        raise ValueError(
            f"objective: {made.name} has better = {short_text(made.better)}; takes a dict of names with max or min"
        )
    for name, way in made.better.items():
        if way not in ("max", "min") or not name.isidentifier():
            raise ValueError(
                f"objective: {made.name} has better = {{{name!r}: {short_text(way)}}}; takes names with max or min"
            )
    if made.main not in ("loss", *made.better):
        raise ValueError(f"objective: {made.name} has main = {short_text(made.main)}, which is none of its figures")
    return made


def misfit(objective: Objective, result: Any, targets: Tensor, classes: int) -> str | None:
    """What is wrong with what a model makes of a batch, for these targets; None if nothing is.

    ValueError, one sentence, for what is wrong with an own objective.
    """
    try:
        outputs = objective.outputs(result)
    except TypeError as error:
        form = objective.misfit(torch.zeros(0), targets, classes) or "a tensor"
        named = "a dict or an object that has them as `logits` or `out`"
        return f"returns {error} for a batch; it must return {form}, or {named}"
    wanted = objective.misfit(outputs, targets, classes)
    if wanted is not None:
        return f"returns {list(outputs.shape)} for a batch; it must return {wanted}"
    if not outputs.is_floating_point():
        return f"returns {str(outputs.dtype).removeprefix('torch.')} for a batch; it must return float32"
    _try(objective, result, outputs, targets)
    return None


def _try(objective: Objective, result: Any, outputs: Tensor, targets: Tensor) -> None:
    """Asks the objective for all that it will be asked for."""
    shapes = f"outputs {list(outputs.shape)} and targets {list(targets.shape)}"
    with calling("objective", objective):
        loss = objective.training_loss(result, outputs, targets)
        if not isinstance(loss, Tensor) or loss.shape != () or not loss.is_floating_point():
            got = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"objective: {objective.name} gave the loss {got} for {shapes}; it must be one number")
        if outputs.isfinite().all() and not loss.isfinite():
            raise ValueError(f"objective: {objective.name} gave the loss {float(loss)} for {shapes} of finite numbers")
        _try_to_differentiate(objective, outputs, targets)
        sums = {name: each.cpu() for name, each in objective.sums(outputs, targets).items()}
        if wrong := [name for name, each in sums.items() if each.shape[:1] != targets.shape[:1]]:
            raise ValueError(
                f"objective: {objective.name} measured {wrong[0]} {list(sums[wrong[0]].shape)} for {shapes}; "
                "it must be [b] or [b, k]"
            )
        figures = objective.figures({name: each.sum(0).numpy() for name, each in sums.items()})
        if figures.keys() != objective.better.keys():
            raise ValueError(f"objective: {objective.name} gave the figures {', '.join(figures)}, not those of better")
        for name, value in figures.items():
            if not isinstance(value, int | float):
                raise ValueError(f"objective: {objective.name} gave {name} {short_text(value)}; it must be a number")


def _try_to_differentiate(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    if not outputs.is_floating_point():
        return
    with torch.inference_mode(mode=False), torch.enable_grad():
        if not objective.loss(outputs.detach().clone().requires_grad_(), targets.clone()).requires_grad:
            raise ValueError(f"objective: {objective.name} gave a loss of which there is no gradient; is it detached?")
