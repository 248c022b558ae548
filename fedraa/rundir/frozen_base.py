"""The digest of a model's frozen base, which is all tensors except the trained parameters."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

# These buffers are not part of the frozen base, because evaluations change them.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "observer_enabled")


def base_sha256(state: Mapping[str, Any], trained: Collection[str], changed: Collection[str]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of a state dict's frozen tensors.

    A trained tensor is excluded under all its names. Statistics of batch norms are also excluded.

    Args:
        state: The state dict.
        trained: The names of the trained tensors.
        changed: The names of buffers that training changes, which are also excluded.
    """
    trained_addresses = {_memory_address(state[name]) for name in trained}
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, Tensor) or name in changed or name in trained or name.endswith(STATISTICS):
            continue
        if _memory_address(tensor) in trained_addresses:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _memory_address(tensor: Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape
