"""Scaling of a submodel's activations by (units of the full model) / (units of the submodel) during local training."""

from collections.abc import Callable
from itertools import chain

from torch import Tensor, nn

from fedraa.submodels import Traced


def scale_readers(module: nn.Module, traced: Traced, widths: tuple[int, ...], *, inner: bool = False) -> None:
    """Multiply the inputs of some layers of a fragment by (units of the full model) / (units of the fragment).

    These are the layers that have fewer inputs than in the full model, but the same outputs. With the scaling, the full
    model's logits are the mean of the fragments' logits, weighted by their shares of the units.

    Args:
        module: The module of the fragment. Hooks are added to its layers.
        traced: The traced full model.
        widths: Number of kept units of each width group.
        inner: True to also scale the inputs of layers that have fewer inputs and fewer outputs. IST needs this: its
            units change clients in every round, so that a unit of the full model reads the units of all clients.
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
