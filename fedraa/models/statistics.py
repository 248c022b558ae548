"""Static batch norm: no client keeps statistics, the server estimates them once (Diao et al. 2021)."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # the lazy ones turn into these


def reestimate_statistics(module: nn.Module, x: npt.NDArray[np.generic], *, batch: int = 512) -> None:
    """Replace the running statistics of every batch norm by their mean over one pass over `x`, `[n, ...]`.

    The norms alone run in training mode, on parts of `x` as equal as can be of at most `batch` samples,
    each part weighted alike. Modes and momenta are as before afterwards. Without a batch norm this does
    nothing.
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
    with torch.no_grad():
        for samples in np.array_split(x, math.ceil(len(x) / batch)):
            module(torch.tensor(samples, device=next(module.buffers()).device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for part, training in modes:
        part.training = training
