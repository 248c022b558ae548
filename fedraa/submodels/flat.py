"""A module's trainable parameters as one contiguous float32 vector."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from itertools import accumulate, chain

import numpy as np
import torch
from torch import nn

from fedraa.errors import InputError
from fedraa.models.lora import Adapted
from fedraa.submodels.scripted import copy_scripts

BY_PIECE = 2**17
"""A submodel of at least this size is updated in chunks. The weights and the gradient of this size fit into 1 MB, the
cache of a core."""
LARGE = 2**19
"""A submodel of at least this size trains without a second buffer for its gradient, even if this takes longer."""
GPU_LARGE = 2**26
"""The value of BY_PIECE and LARGE for a GPU, where chunks only save memory: small chunks would make a GPU slow."""


def is_by_piece(size: int, device: torch.device) -> bool:
    """Return True if training updates a submodel of this size in chunks on this device."""
    return size >= (BY_PIECE if device.type == "cpu" else GPU_LARGE)


def is_large(size: int, device: torch.device) -> bool:
    """Return True if training should save memory: a submodel of this size gets no second buffer for its gradient."""
    return size >= (LARGE if device.type == "cpu" else GPU_LARGE)


def copy_to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as a NumPy array."""
    return tensor.to("cpu", copy=True).numpy()


def flatten_parameters(module: nn.Module) -> np.ndarray:
    """Return a copy of the trainable parameters as one float32 vector [d], in the order of `named_parameters`."""
    parts = [p.detach().to("cpu", torch.float32).reshape(-1).numpy() for p in trainable_parameters(module)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def flat_layout(module: nn.Module) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Return the names, shapes and offsets of the trainable parameters in the flat vector, and its length."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    shapes = tuple(tuple(p.shape) for p in parameters.values())
    *offsets, size = [0, *accumulate(p.numel() for p in parameters.values())]
    return tuple(parameters), shapes, tuple(offsets), size


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return, for every name of a trainable parameter, the parameter's name in `flat_layout`.

    A parameter that several layers share has several names. The flat vector contains it once, under its first name.
    """
    first = {parameter: name for name, parameter in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in every if parameter.requires_grad}


def layer_of(parameter: str) -> str:
    """Return the name of the module to which a parameter with this name belongs.

    The parameters of a parametrization, such as a weight norm, belong to the module that it parametrizes.
    """
    parts = parameter.split(".")
    end = len(parts) - 1
    if "parametrizations" in parts:
        end = parts.index("parametrizations")
    return ".".join(parts[:end])


def locate_parameters(module: nn.Module) -> Iterator[tuple[nn.Parameter, slice]]:
    """Yield each trainable parameter with its slice of the flat vector."""
    start = 0
    for parameter in trainable_parameters(module):
        stop = start + parameter.numel()
        yield parameter, slice(start, stop)
        start = stop


def load_parameters(module: nn.Module, vector: np.ndarray, *, writable: bool = True) -> None:
    """Load a flat vector [d] into the trainable parameters.

    Args:
        module: The module, changed in place.
        vector: Float32 [d], in the layout of `flatten_parameters`.
        writable: True to copy the vector. With False, parameters on the CPU share its memory and cannot be trained.

    Raises:
        InputError: The vector has the wrong length.
    """
    size = sum(p.numel() for p in trainable_parameters(module))
    if vector.shape != (size,):
        raise InputError("vector", got=vector, expected=f"{size} values, one per trainable scalar of the module")
    flat = view_as_tensor(vector)
    if writable:
        flat = torch.tensor(vector)
    for p, piece in locate_parameters(module):
        p.data = flat[piece].view(p.shape).to(p)


def drop_weights(module: nn.Module) -> None:
    """Replace the values of the trainable parameters by zeros that need no memory. The old values are lost."""
    for p in trainable_parameters(module):
        p.data = p.new_zeros(()).expand(p.shape)


def copy_structure(module: nn.Module) -> nn.Module:
    """Return a copy of the module whose parameters share the memory of the original's parameters.

    The parameters of the copy can be replaced later.
    """
    shared = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, shared | copy_scripts(module))


def trainable_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters with requires_grad, in the order of the flat vector."""
    return [p for p in module.parameters() if p.requires_grad]


def frozen_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters without requires_grad."""
    return [p for p in module.parameters() if not p.requires_grad]


def find_layer_weights(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters with two dimensions or more of linear layers and convolutions."""
    kinds = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
    layers = [layer for layer in module.modules() if isinstance(layer, kinds)]
    return {p for p in chain.from_iterable(layer.parameters() for layer in layers) if p.dim() > 1}


def find_embeddings(module: nn.Module) -> list[slice]:
    """Return the slice of each embedding in the flat buffer of a module, in ascending order.

    Embeddings that share their tensor with another layer are left out.
    """
    embeddings: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for layer in module.modules():
        owners = embeddings if isinstance(layer, nn.Embedding | nn.EmbeddingBag) else others
        owners.update(layer.parameters(recurse=False))
    return [piece for parameter, piece in locate_parameters(module) if parameter in embeddings - others]


def find_merged(module: nn.Module) -> list[slice]:
    """Return the slice of each parameter `merged` of an adapter in the flat buffer of a module, in ascending order."""
    merged = {layer.merged for layer in module.modules() if isinstance(layer, Adapted)}
    return [piece for parameter, piece in locate_parameters(module) if parameter in merged]


def view_as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a tensor that shares the memory of an array. Do not write to the tensor: the array may be read-only."""
    return torch.from_numpy(array)


def _silence_read_only_warning() -> None:
    """Hide torch's warning about read-only arrays.

    Torch emits this warning only once per process. This function triggers it with a filter that ignores it.
    """
    array = np.zeros(0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        torch.from_numpy(array)


# One call at the import is faster than a filter in every task.
_silence_read_only_warning()
