"""Checks that a module can be trained as one float32 vector."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedraa.data.tree import Tree, map_tree
from fedraa.errors import InputError, first_line
from fedraa.models.forward import forward
from fedraa.submodels.cutting import copy_computed
from fedraa.submodels.scripted import copy_scripts
from fedraa.submodels.tracing.recorder import iterate_tensors


def check_kinds(module: nn.Module) -> None:
    """Raise InputError if a tensor has no values, or a trainable parameter is not dense, finite float32.

    Buffers may contain infinities, because attention masks do.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InputError("module", f"{name!r} has no shape yet", hint="run the module on a batch first")
        if tensor.is_meta:
            hint = "make the module on the CPU, or call module.to_empty(device='cpu') and set its values"
            raise InputError("module", f"{name!r} is on the meta device, which keeps no values", hint=hint)
    for name, p in module.named_parameters():
        if p.layout != torch.strided:
            problem = f"parameter {name!r} is {p.layout}"
            raise InputError("module", problem, expected="dense parameters, as p.to_dense() returns")
        if p.requires_grad and p.dtype != torch.float32:
            hint = "split it into real parts" if p.is_complex() else "call module.float() first, or freeze it"
            problem = f"parameter {name!r} is {p.dtype}"
            raise InputError("module", problem, expected="float32 for parameters that are trained", hint=hint)
        if p.requires_grad and not torch.isfinite(p).all():
            problem = f"parameter {name!r} has initial values that are not finite"
            raise InputError("module", problem, hint="set them first")


def check_code(module: nn.Module) -> None:
    """Raise InputError if the module contains TorchScript, which cannot be traced."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            layer = f"{name!r} of {type(module).__name__}" if name else type(part).__name__
            problem = f"{layer} is TorchScript, and its code cannot be followed"
            raise InputError("module", problem, hint="pass the plain module")


def check_gradients(module: nn.Module, inputs: Tree, unregistered: Sequence[nn.Parameter]) -> None:
    """Raise InputError if the gradients of the module do not permit training.

    The causes are no gradient at all, a sparse gradient, and a gradient for a parameter that is not registered.

    Args:
        module: The module, set to training mode.
        inputs: A batch of inputs.
        unregistered: Parameters that the forward pass reads, but that are not registered in the module. An example is
            a layer in a plain list.
    """
    kind = type(module).__name__
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    foreign = [p for p in unregistered if p.requires_grad]
    outputs, gradients = _compute_gradients(module, inputs, [*named.values(), *foreign])
    if not outputs:
        raise no_output_error(kind)
    for p, gradient in zip(foreign, gradients[len(named) :], strict=True):
        if gradient is not None:
            raise unregistered_error(kind, p)
    if all(gradient is None for gradient in gradients):
        raise no_gradient_error(kind)
    refuse_sparse(module, gradients[: len(named)])


def no_output_error(kind: str) -> InputError:
    """Return the error for an output without tensors."""
    hint = "return tensors, or a dict, a tuple or a dataclass of tensors"
    return InputError("module", f"the output of {kind} has no tensor", hint=hint)


def unregistered_error(kind: str, p: nn.Parameter) -> InputError:
    """Return the error for a parameter that the module reads, but that is not registered in it."""
    problem = f"{kind} reads a parameter {list(p.shape)} that is not registered in it and would never be trained"
    return InputError("module", problem, hint="register it, freeze it, or define forward in the class")


def no_gradient_error(kind: str) -> InputError:
    """Return the error for a module in which no parameter gets a gradient."""
    return InputError("module", f"no parameter of {kind} gets a gradient from its output, so nothing is trained")


def refuse_sparse(module: nn.Module, gradients: Sequence[Tensor | None]) -> None:
    """Raise InputError if a gradient is sparse. The gradients are in the order of the trainable parameters."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for (name, p), gradient in zip(named, gradients, strict=True):
        if gradient is not None and gradient.layout != p.layout:
            problem = f"parameter {name!r} gets a sparse gradient"
            raise InputError("module", problem, hint="make its layer with sparse=False")


def _compute_gradients(
    module: nn.Module, inputs: Tree, parameters: Sequence[nn.Parameter]
) -> tuple[list[Tensor], Sequence[Tensor | None]]:
    """Return the output tensors, and the gradient of their sum for each parameter. An unused parameter gets None.

    Args:
        module: The module, set to training mode.
        inputs: A batch of inputs.
        parameters: The parameters.
    """
    try:
        with torch.enable_grad(), torch.random.fork_rng():
            outputs = list(iterate_tensors(forward(module.train(), map_tree(lambda part: part.clone(), inputs))))
            sums = [x.sum() for x in outputs if x.requires_grad]
            if not sums or not parameters:
                return outputs, [None] * len(parameters)
            return outputs, torch.autograd.grad(sums, parameters, allow_unused=True)
    # The code of a module may raise any exception.
    except Exception as error:
        raise InputError("module", f"{type(module).__name__} cannot be trained: {short_line(error)}") from error


def copy_private(module: nn.Module, *, share: bool = False) -> nn.Module:
    """Return a copy of a module. With `share`, the parameters of the copy share their memory with the module."""
    memo: dict[int, object] = {}
    if share:
        memo = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    try:
        return copy.deepcopy(module, copy_computed(module) | memo | copy_scripts(module))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise InputError("module", f"{type(module).__name__} cannot be copied: {short_line(error)}") from error


def short_line(error: BaseException, limit: int = 150) -> str:
    """Return the first line of an error's message, cut to `limit` characters."""
    line = first_line(error)
    if isinstance(error, KeyError):
        # The message of a KeyError is only the key.
        line = f"KeyError: {line}"
    if len(line) > limit:
        line = line[: limit - 3] + "..."
    return line
