"""A module's trainable parameters as one contiguous float32 vector."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import torch
from torch import nn

from fedraa.submodels.scripted import copy_scripts

# Parameters of a submodel from which descent goes piece by piece: about as many as the cache of a core holds.
BY_PIECE = 2**19


def flatten(module: nn.Module) -> np.ndarray:
    """The trainable parameters in the order of `named_parameters`: float32 `[d]`, a copy."""
    parts = [p.detach().to("cpu", torch.float32).reshape(-1).numpy() for p in trainable(module)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def load(module: nn.Module, vector: np.ndarray, *, writable: bool = True) -> None:
    """Make the trainable parameters views of a copy of a vector that `flatten` made of a module of this shape.

    Unless they are to be `writable`: then they are views of the vector itself where the module is on the CPU.
    Raises ValueError if the length does not match.
    """
    parameters = trainable(module)
    size = sum(p.numel() for p in parameters)
    if vector.shape != (size,):
        raise ValueError(f"vector: shape {vector.shape} given, this module takes ({size},)")
    flat = torch.tensor(vector) if writable else view(vector)
    start = 0
    for p in parameters:
        p.data = flat[start : start + p.numel()].view(p.shape).to(p)
        start += p.numel()


def drop_weights(module: nn.Module) -> None:
    """Leave of the trainable parameters their shapes alone, which take no memory; the values are lost."""
    for p in trainable(module):
        p.data = p.new_zeros(()).expand(p.shape)


def twin(module: nn.Module) -> nn.Module:
    """A copy of the module that shares the memory of its parameters, until either is given another."""
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, shared | copy_scripts(module))


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that the flat vector holds, in its order."""
    return [p for p in module.parameters() if p.requires_grad]


def frozen(module: nn.Module) -> list[nn.Parameter]:
    """The others, which stay as they are where a model is trained."""
    return [p for p in module.parameters() if not p.requires_grad]


def view(array: np.ndarray) -> torch.Tensor:
    """Return a tensor in the array's own memory, which may be read-only: never write to it."""
    return torch.from_numpy(array)


def _use_up_warning() -> None:
    """Let torch give its warning about read-only arrays, unseen: it gives it once per process."""
    array = np.zeros(0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        torch.from_numpy(array)


# To change the filters for every task would take longer than all that a small task does with its buffer.
_use_up_warning()
