"""Copies of TorchScript modules. Unlike copies by `copy.deepcopy` or pickle, they can be trained."""

from __future__ import annotations

import io
from typing import cast

import torch
from torch import nn


class PackedScript(nn.Module):
    """A TorchScript module as bytes, which can be pickled."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.content = _write_script(module)

    def load_script(self) -> nn.Module:
        return _read_script(self.content)


def copy_scripts(module: nn.Module) -> dict[int, object]:
    """Return a memo for `copy.deepcopy` with copies of the TorchScript modules inside a module.

    Without this memo, the parameters of a deep copy would get no gradient.
    """
    return {id(part): _read_script(_write_script(part)) for part in find_scripts(module)}


def find_scripts(module: nn.Module) -> list[torch.jit.ScriptModule]:
    """Return the outermost TorchScript modules in `module`."""
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
    return cast(nn.Module, torch.jit.load(io.BytesIO(content)))
