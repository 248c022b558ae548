"""Removal of modules that only wrap another one, such as `torch.compile` and `nn.DataParallel`."""

import copy
from typing import Any

import torch
from torch import nn


def unwrap_module(module: nn.Module) -> nn.Module:
    """Return the module to train, without wrappers and compiled code.

    The result shares its tensors with `module`, and `module` itself does not change. Tensors have the names of the
    inner module. A wrapped submodule becomes a PlainCall, which keeps all names.
    """
    while (name := _inner_name(module)) is not None:
        module = module.get_submodule(name)
    wrappers = [part for part in module.modules() if _inner_name(part) is not None]
    if not wrappers:
        return module
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    memo |= {id(part): part for part in module.modules() if isinstance(part, torch.jit.ScriptModule)}
    memo |= {id(part): PlainCall() for part in wrappers}
    for part in wrappers:
        name = str(_inner_name(part))
        memo[id(part)].hold(name, copy.deepcopy(part.get_submodule(name), memo))
    result: nn.Module = copy.deepcopy(module, memo)
    return result


class PlainCall(nn.Module):
    """A module that replaces a wrapper. It passes calls to the inner module, and has the inner module's attributes."""

    def hold(self, name: str, inner: nn.Module) -> None:
        """Store the inner module under the name that it had in the wrapper."""
        self.add_module(name, inner)
        self.inner_name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inner = self._modules[self.inner_name]
        assert inner is not None
        return inner(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = vars(self).get("_modules", {}).get(vars(self).get("inner_name"))
            # Special methods of the inner module would copy or pickle only the inner module.
            if inner is None or name.startswith("__"):
                raise
            return getattr(inner, name)


def _inner_name(module: nn.Module) -> str | None:
    """Return the name of the only child of a wrapper, or None for other modules.

    Classes are recognised by name, because the import of torch's compiler takes a second.
    """
    children = [name for name, _ in module.named_children()]
    kinds = [kind.__name__ for kind in type(module).__mro__]
    if "OptimizedModule" in kinds and children == ["_orig_mod"]:
        return "_orig_mod"
    if children == ["module"] and any(kind.endswith("DataParallel") for kind in kinds):
        return "module"
    return None
