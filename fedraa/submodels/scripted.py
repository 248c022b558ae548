"""Copies of TorchScript modules. A copy by `copy.deepcopy` or pickle could not be trained."""

from __future__ import annotations

import io
from typing import cast

import torch
from torch import nn


class PackedScript(nn.Module):
    """A TorchScript module as bytes, in a form that can be pickled."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.content = _write_script(module)

    def load_script(self) -> nn.Module:
        """Return the TorchScript module that the bytes encode."""
        return _read_script(self.content)


def copy_scripts(module: nn.Module) -> dict[int, object]:
    """Return copies of the module's TorchScript modules, by the ids of the originals, as a memo for `copy.deepcopy`.

    Without this memo, the parameters in a deep copy would be results of a computation, which get no gradient.
    """
    return {id(part): _read_script(_write_script(part)) for part in find_scripts(module)}


def find_scripts(module: nn.Module) -> list[torch.jit.ScriptModule]:
    """Return the TorchScript modules in `module` that are not inside another TorchScript module."""
    if isinstance(module, torch.jit.ScriptModule):
        return [module]
    scripts = []
    for part in module.children():
        scripts += find_scripts(part)
    return scripts


def _write_script(module: torch.jit.ScriptModule) -> bytes:
    stream = io.BytesIO()
    torch.jit.save(module, stream)
    return stream.getvalue()


def _read_script(content: bytes) -> nn.Module:
    # This function of torch has no type annotations.
    return cast(nn.Module, torch.jit.load(io.BytesIO(content)))  # type: ignore[no-untyped-call]
