"""Weights that torch computes from parameters in every forward pass, such as those of a spectral norm."""

from itertools import chain

from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def copy_computed(module: nn.Module) -> dict[int, object]:
    """Return copies of the tensors that hooks computed, such as the weight of a pruned layer.

    The result is a memo for `copy.deepcopy`, which cannot copy these tensors.
    """
    values = chain.from_iterable(vars(part).values() for part in module.modules())
    return {id(value): value.detach().clone() for value in values if isinstance(value, Tensor) and not value.is_leaf}


def is_spectral(part: nn.Module) -> bool:
    """Return True if torch's `spectral_norm` put a hook on this module or created this module."""
    return _is_norm_of_weights(part, "_SpectralNorm", SpectralNorm)


def is_weight_norm(part: nn.Module) -> bool:
    """Return True if torch's `weight_norm` put a hook on this module or created this module."""
    return _is_norm_of_weights(part, "_WeightNorm", WeightNorm)


def _is_norm_of_weights(part: nn.Module, new: str, old: type) -> bool:
    """Return True if a norm of weights is on this module, or is this module.

    The old functions of torch put a hook of the class `old` on a layer. The new ones create a module of the class
    `new`.
    """
    return type(part).__name__ == new or any(isinstance(hook, old) for hook in part._forward_pre_hooks.values())
