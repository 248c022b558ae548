"""Checks that a module can be trained as one float32 vector."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedraa.data.tree import Tree, map_tree
from fedraa.errors import InputError, first_line
from fedraa.models.computed_weights import copy_computed
from fedraa.models.forward import forward
from fedraa.submodels.scripted import copy_scripts
from fedraa.submodels.tracing.memory import check_memory
from fedraa.submodels.tracing.recorder import iterate_tensors


def check_kinds(module: nn.Module) -> None:
    """Raise InputError if a tensor has no values or is not dense, or a trainable parameter is not finite float32.

    Also raise it if a copy of the module would train differently, as `check_memory` describes.

    Buffers may contain infinities, because attention masks do.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise InputError("module", f"{name!r} has no shape yet", hint="run the module on a batch first")
        if tensor.is_meta:
            hint = "make the module on the CPU, or call module.to_empty(device='cpu') and set its values"
            raise InputError("module", f"{name!r} is on the meta device, which keeps no values", hint=hint)
        if tensor.layout != torch.strided or tensor.is_quantized:
            kind = tensor.dtype if tensor.is_quantized else tensor.layout
            expected = "dense tensors, as to_dense() or dequantize() returns"
            raise InputError("module", f"{name!r} is {kind}", expected=expected)
    for name, p in module.named_parameters():
        if p.requires_grad and p.dtype != torch.float32:
            hint = "split it into real parts" if p.is_complex() else "call module.float() first, or freeze it"
            problem = f"parameter {name!r} is {p.dtype}"
            raise InputError("module", problem, expected="float32 for parameters that are trained", hint=hint)
        if p.requires_grad and not torch.isfinite(p).all():
            problem = f"parameter {name!r} has initial values that are not finite"
            raise InputError("module", problem, hint="set them first")
    check_memory(module)


def check_code(module: nn.Module) -> None:
    """Raise InputError if the module contains TorchScript, which cannot be traced."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            layer = f"{name!r} of {type(module).__name__}" if name else type(part).__name__
            problem = f"{layer} is TorchScript, and its code cannot be followed"
            raise InputError("module", problem, hint="pass the plain module")


def compute_gradients(module: nn.Module, inputs: Tree) -> list[Tensor | None]:
    """Return the gradient of each trainable parameter. A parameter that the output does not depend on gets None.

    Args:
        module: The module, which is put into training mode.
        inputs: A batch of inputs.

    Raises:
        InputError: The module cannot be trained: it fails, no parameter gets a gradient, a gradient is sparse, or the
            forward pass reads parameters that are not registered, such as those of a layer in a plain list.
    """
    kind = type(module).__name__
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    registered = set(map(id, parameters.values()))
    try:
        outputs = run_forward(module, inputs)
        strange = [p for p in _read_parameters(outputs) if id(p) not in registered]
        if outputs and not strange:
            differentiate_sum(outputs)
    # The code of a module may raise any exception.
    except Exception as error:
        raise InputError("module", f"{kind} cannot be trained: {short_line(error)}") from error
    if not outputs:
        hint = "return tensors, or a dict, a tuple or a dataclass of tensors"
        raise InputError("module", f"the output of {kind} has no tensor", hint=hint)
    if strange:
        shape = list(max(strange, key=nn.Parameter.numel).shape)
        problem = f"{kind} reads a parameter {shape} that is not registered in it and would never be trained"
        raise InputError("module", problem, hint="register it, freeze it, or define forward in the class")
    if all(p.grad is None for p in parameters.values()):
        raise InputError("module", f"no parameter of {kind} gets a gradient from its output, so nothing is trained")
    for name, p in parameters.items():
        if p.grad is not None and p.grad.layout != p.layout:
            problem = f"parameter {name!r} gets a sparse gradient"
            raise InputError("module", problem, hint="make its layer with sparse=False")
    return [p.grad for p in parameters.values()]


def run_forward(module: nn.Module, inputs: Tree) -> list[Tensor]:
    """Return the tensors in the output of the module in training mode."""
    with torch.enable_grad(), torch.random.fork_rng():
        return list(iterate_tensors(forward(module.train(), map_tree(lambda part: part.clone(), inputs))))


def differentiate_sum(outputs: Sequence[Tensor]) -> None:
    """Run the backward pass from the sum of the outputs. A complex output counts as its absolute values."""
    sums = [x.abs().sum() if x.is_complex() else x.sum() for x in outputs if x.requires_grad]
    if sums:
        torch.autograd.backward(sums)


def _read_parameters(outputs: Sequence[Tensor]) -> Iterator[nn.Parameter]:
    """Yield the parameters in the autograd graph of the outputs."""
    waiting = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if type(node).__name__ == "AccumulateGrad" and isinstance(variable, nn.Parameter):
            yield variable
        further = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= further
        waiting += further


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
