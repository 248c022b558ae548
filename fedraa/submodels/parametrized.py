"""Pickling of modules with parametrizations (`torch.nn.utils.parametrize`) or TorchScript.

Torch creates the class of a parametrized layer at run time. Objects of such a class cannot be pickled. The class only
adds properties that compute tensors, so it can be created again after unpickling.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedraa.submodels.scripted import PackedScript, find_scripts


def pack_module(module: nn.Module) -> nn.Module:
    """Return a module that can be pickled: the module itself, or a copy with the same tensors."""
    scripts = find_scripts(module)
    if not scripts and not any(map(is_parametrized, module.modules())):
        return module
    memo: dict[int, object] = {id(x): x for x in (*module.parameters(), *module.buffers())}
    same: nn.Module = copy.deepcopy(module, memo | {id(part): PackedScript(part) for part in scripts})
    for layer in same.modules():
        if is_parametrized(layer):
            layer.__class__ = type(layer).__bases__[0]
    return same


def unpack_module(module: nn.Module) -> nn.Module:
    """Return the module that `pack_module` packed."""
    if isinstance(module, PackedScript):
        return module.load_script()
    for layer in list(module.modules()):
        for name, part in layer.named_children():
            if isinstance(part, PackedScript):
                setattr(layer, name, part.load_script())
    for layer in module.modules():
        if is_parametrized(layer):
            kind = type(layer)
            lists = layer.get_submodule("parametrizations")
            assert isinstance(lists, nn.ModuleDict)
            layer.__class__ = type(
                f"Parametrized{kind.__name__}", (kind,), {name: _make_property(name) for name in lists}
            )
    return module


def _make_property(name: str) -> property:
    def compute_tensor(layer: nn.Module) -> Tensor:
        result: Tensor = layer.get_submodule(f"parametrizations.{name}")()
        return result

    return property(compute_tensor)
