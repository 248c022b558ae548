"""Scaling of a fragment's activations by the inverse of its share while the fragment trains."""

from collections.abc import Callable
from itertools import chain

from torch import Tensor, nn

from fedraa.submodels import Traced


def scale_readers(module: nn.Module, traced: Traced, widths: tuple[int, ...], *, inner: bool = False) -> None:
    """Scale the inputs of each layer that has cut inputs and uncut outputs by (size of the group) / (kept units).

    The logits of a fragment are then W_j (h_j / r_j) + b. Therefore the full model's logits, a sum over fragments, are
    the r-weighted mean of the logits that the clients trained.

    Args:
        module: The fragment's module.
        traced: The traced full model.
        widths: Kept units of each group.
        inner: Also scale the inputs of layers that have cut inputs and cut outputs. This is needed if units are
            assigned again in every round (IST), because the full model's units then read the units of all groups.
    """
    entries = chain.from_iterable(group.entries for group in traced.groups)
    cut = {(entry.tensor, entry.dim) for entry in entries}
    for group, kept in zip(traced.groups, widths, strict=True):
        for entry in group.entries:
            owner, _, tensor = entry.tensor.rpartition(".")
            layer = module.get_submodule(owner)
            reads = tensor == "weight" and entry.dim == 1 and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)
            if reads and (inner or (entry.tensor, 0) not in cut):
                layer.register_forward_pre_hook(_make_scale_hook(group.size / kept))


def _make_scale_hook(factor: float) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def scale_input(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0] * factor, *inputs[1:])

    return scale_input
