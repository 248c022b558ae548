"""Static batch norm: no client keeps statistics, the server estimates them once (Diao et al. 2021)."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from fedraa.data.tree import Tree, leaves, mapped, take
from fedraa.models.forward import forward

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # the lazy ones turn into these


def has_statistics(module: nn.Module) -> bool:
    """Whether it has a batch norm whose statistics are to be estimated."""
    return any(isinstance(part, NORMS) and part.track_running_stats for part in module.modules())


def equal_parts(count: int, batch: int) -> list[int]:
    """The sizes of parts of so many samples, as equal as can be, of at most `batch` each."""
    return [len(rows) for rows in np.array_split(np.arange(count), math.ceil(count / batch))] if count else []


def reestimate_statistics(module: nn.Module, x: Tree, *, batch: int = 512) -> None:
    """As `reestimate_over` parts of `x` [n, ...] as equal as can be of at most `batch` samples."""
    ends = np.cumsum(equal_parts(len(leaves(x)[0]), batch)).tolist()
    reestimate_over(module, (take(x, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)))


def reestimate_over(module: nn.Module, parts: Iterable[Tree]) -> None:
    """Replace the running statistics of every batch norm by their mean over one pass over `parts`, each [b, ...].

    The norms alone run in training mode, and each part is weighted alike. Modes and momenta are as before afterwards.
    Without a batch norm this does nothing.
    """
    norms = [norm for norm in module.modules() if isinstance(norm, NORMS) and norm.track_running_stats]
    if not norms:
        return
    modes = [(part, part.training) for part in module.modules()]
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average
        norm.train()
    device = next(module.buffers()).device
    with torch.no_grad():
        for samples in parts:
            forward(module, mapped(lambda array: torch.tensor(array, device=device), samples))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for part, training in modes:
        part.training = training
