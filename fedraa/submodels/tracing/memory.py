"""Refusal of trainable parameters that a copy of their module would separate from hooks or from other tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedraa.errors import InputError


def check_memory(module: nn.Module) -> None:
    """Raise InputError if a copy of the module would lose what links its trainable parameters to other code or tensors.

    A copy has neither the hooks of a parameter nor the memory that a parameter shares with another tensor.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, p in trained.items():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            problem = f"parameter {name!r} has a hook on its gradient, which is lost in copies of the module"
            raise InputError(
                "module", problem, hint="remove the hook, and change the weight or the gradient in forward"
            )
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.numel():
            by_storage.setdefault(x.untyped_storage().data_ptr(), []).append((name, x))
    for tensors in by_storage.values():
        for at, (name, x) in enumerate(tensors):
            for other, y in tensors[:at]:
                if (name in trained or other in trained) and _overlap(x, y):
                    problem = f"{other!r} and {name!r} share memory, but are trained as separate tensors"
                    hint = f"clone one of them, or register the parameter {other!r} itself under both names"
                    raise InputError("module", problem, hint=hint)


def _overlap(left: Tensor, right: Tensor) -> bool:
    """Return True if two tensors of the same storage have an element in common."""
    spans = []
    for x in (left, right):
        length = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        spans.append((x.data_ptr(), x.data_ptr() + length * x.element_size()))
    (start, end), (other_start, other_end) = spans
    if end <= other_start or other_end <= start:
        return False
    return bool(torch.isin(_find_addresses(left), _find_addresses(right)).any())


def _find_addresses(x: Tensor) -> Tensor:
    """Return the address of each element."""
    addresses = torch.tensor([x.data_ptr()])
    for size, stride in zip(x.shape, x.stride(), strict=True):
        addresses = (addresses[:, None] + torch.arange(size) * stride * x.element_size()).reshape(-1)
    return addresses
