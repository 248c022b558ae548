"""The preparation of modules that are never cut. Any module that PyTorch can train is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree, map_tree
from fedraa.submodels.flat import BY_PIECE, flat_layout, trainable_parameters
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.accept import check_kinds, compute_gradients, differentiate_sum, run_forward
from fedraa.submodels.tracing.trace import copy_to_cpu


def take_whole(module: nn.Module, example: Tree) -> Traced:
    """Return a module as a Traced object without width groups. Such a module is never cut.

    Args:
        module: Any module. The result has a copy of it on the CPU. The copy of a large module shares its memory.
        example: A batch of at least two inputs.

    Raises:
        InputError: The module cannot be trained on the example, or its parameters do not form one float32 vector.
    """
    check_kinds(module)
    module = copy_to_cpu(module)
    whole = Traced(module, (), {}, *flat_layout(module), {}, frozenset())
    return _train_once(whole, example)


def check_updates(traced: Traced, example: Tree) -> Traced:
    """Test if each parameter may be updated early. Return the traced module, with the result in `by_piece`.

    An early update happens before the backward pass has computed the gradients of all other parameters.
    """
    if traced.size < BY_PIECE:
        return traced
    return _train_once(traced, example)


def _train_once(traced: Traced, example: Tree) -> Traced:
    """Return the traced module. Set `by_piece` to False if early updates of parameters change other gradients.

    An early update of a parameter happens as soon as its gradient is computed, while the backward pass still runs.
    Raises InputError if the module cannot be trained on the example.
    """
    example = map_tree(lambda part: part.cpu(), example)
    gradients = compute_gradients(traced.make_full_skeleton(), example)
    if traced.size < BY_PIECE or _survive_updates(traced.make_full_skeleton(), example, gradients):
        return traced
    return replace(traced, by_piece=False)


def _survive_updates(module: nn.Module, inputs: Tree, gradients: Sequence[Tensor | None]) -> bool:
    """Return True if every parameter may be updated as soon as its gradient is computed.

    The test sets each parameter to NaN at that moment and compares all gradients with the expected ones.

    Args:
        module: A copy of the module. It cannot be used afterwards.
        inputs: A batch of inputs.
        gradients: The expected gradient of each trainable parameter.
    """
    parameters = trainable_parameters(module)
    computed: dict[int, Tensor] = {}
    repeated: list[int] = []

    def take_gradient(p: Tensor) -> None:
        assert p.grad is not None
        if id(p) in computed:
            repeated.append(id(p))
        computed[id(p)] = p.grad
        p.grad = None
        p.data.fill_(torch.nan)

    for p in parameters:
        p.register_post_accumulate_grad_hook(take_gradient)
    try:
        differentiate_sum(run_forward(module, inputs))
    # NaN can make a module's code raise any exception.
    except Exception:
        return False
    for p, first in zip(parameters, gradients, strict=True):
        second = computed.get(id(p))
        if first is not None and (second is None or not torch.equal(first.isfinite(), second.isfinite())):
            return False
    return not repeated
