"""Modules with parametrizations (`torch.nn.utils.parametrize`), in a form that can be pickled.

Torch gives such a layer a class of its own, made as the program runs, which refuses to be pickled. What it adds to
the layer's class are properties that compute tensors; the rest is in the layer's parts.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized


def packed(module: nn.Module) -> nn.Module:
    """The module itself if none of its layers is parametrized, else a copy that shares its tensors."""
    if not any(map(is_parametrized, module.modules())):
        return module
    same = copy.deepcopy(module, {id(x): x for x in (*module.parameters(), *module.buffers())})
    for layer in same.modules():
        if is_parametrized(layer):
            layer.__class__ = type(layer).__bases__[0]
    return same


def unpack(module: nn.Module) -> None:
    """Give the layers of a `packed` module their properties back."""
    for layer in module.modules():
        if is_parametrized(layer):
            kind, lists = type(layer), layer.get_submodule("parametrizations")
            assert isinstance(lists, nn.ModuleDict)
            layer.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {name: _property(name) for name in lists})


def _property(name: str) -> property:
    def compute(layer: nn.Module) -> Tensor:
        result: Tensor = layer.get_submodule(f"parametrizations.{name}")()
        return result

    return property(compute)
