"""Which modules can be trained as one float32 vector, and why the others cannot."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedraa.data.tree import Tree, mapped
from fedraa.models.forward import forward
from fedraa.submodels.cutting import computed
from fedraa.submodels.scripted import copy_scripts
from fedraa.submodels.tracing.recorder import tensors


def check_kinds(module: nn.Module) -> None:
    """Raise ValueError for tensors without values, and for trainable parameters that are not finite float32.

    Buffers may hold infinities, as masks of attention do.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"module: {name!r} has no shape yet; run the module once on a batch before")
        if tensor.is_meta:
            raise ValueError(
                f"module: {name!r} is on the meta device, which keeps no values; make the module on the CPU, or call "
                "module.to_empty(device='cpu') and set its values"
            )
    for name, p in module.named_parameters():
        if p.layout != torch.strided:
            raise ValueError(f"module: parameter {name!r} is {p.layout}; expected a dense one, as p.to_dense() gives")
        if p.requires_grad and p.dtype != torch.float32:
            raise ValueError(
                f"module: parameter {name!r} is {p.dtype}, and what is trained is float32; "
                + ("split it in real parts" if p.is_complex() else "call module.float() first, or freeze it")
            )
        if p.requires_grad and not torch.isfinite(p).all():
            raise ValueError(f"model: parameter {name!r} begins with values that are not finite; set them first")


def check_code(module: nn.Module) -> None:
    """Raise ValueError for compiled code."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            what = f"{name!r} of {type(module).__name__}" if name else type(part).__name__
            raise ValueError(f"module: {what} is TorchScript, whose code cannot be followed; give the plain module")


def check_gradients(module: nn.Module, inputs: Tree, strange: Sequence[nn.Parameter]) -> None:
    """ValueError unless the output has a dense gradient for some parameter, and for none of `strange`.

    A forward that was replaced by a closure, or that reads layers from a plain list, reads parameters that are not
    the module's: they would never be trained.
    """
    kind = type(module).__name__
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    others = [p for p in strange if p.requires_grad]
    found, gradients = _gradients(module, inputs, [*named.values(), *others])
    if not found:
        raise ValueError(f"module: no tensor is found in what {kind} returns; return tensors, or a dict or tuple")
    for p, gradient in zip(others, gradients[len(named) :], strict=True):
        if gradient is not None:
            raise ValueError(
                f"module: {kind} reads a parameter {tuple(p.shape)} that is not registered in it, so that it would "
                "never be trained; register it, freeze it, or define forward in the class"
            )
    if all(gradient is None for gradient in gradients):
        raise ValueError(f"module: no parameter of {kind} gets a gradient from its output, so nothing is trained")
    refuse_sparse(module, gradients[: len(named)])


def refuse_sparse(module: nn.Module, gradients: Sequence[Tensor | None]) -> None:
    """Raise ValueError if one of these gradients, in the order of the trainable parameters, is sparse."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for (name, p), gradient in zip(named, gradients, strict=True):
        if gradient is not None and gradient.layout != p.layout:
            raise ValueError(f"module: parameter {name!r} gets a sparse gradient; make its layer with sparse=False")


def _gradients(
    module: nn.Module, inputs: Tree, parameters: Sequence[nn.Parameter]
) -> tuple[list[Tensor], Sequence[Tensor | None]]:
    """The output's tensors, and the gradient of their sum for each parameter, None where there is none."""
    try:
        with torch.enable_grad(), torch.random.fork_rng():
            found = list(tensors(forward(module.train(), mapped(lambda part: part.clone(), inputs))))
            out = [x.sum() for x in found if x.requires_grad]
            if not out or not parameters:
                return found, [None] * len(parameters)
            return found, torch.autograd.grad(out, parameters, allow_unused=True)
    except Exception as error:  # whatever its code raises
        raise ValueError(f"module: {type(module).__name__} cannot be trained: {first_line(error)}") from error


def private(module: nn.Module, *, share: bool = False) -> nn.Module:
    """A copy of a module; it may share the memory of its parameters."""
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()} if share else {}
    try:
        return copy.deepcopy(module, computed(module) | shared | copy_scripts(module))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise ValueError(f"module: {type(module).__name__} cannot be copied: {first_line(error)}") from error


def first_line(error: BaseException, limit: int = 150) -> str:
    """The message of an error, short enough to be part of one sentence."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    line = f"KeyError: {line}" if isinstance(error, KeyError) else line  # which is a mere name
    return line if len(line) <= limit else line[: limit - 3] + "..."
