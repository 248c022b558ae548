"""HeteroFL's scaler: a layer that keeps the activations of submodels as large as those of the full model."""

import torch
from torch import nn

from fedraa.errors import InputError


class Scaler(nn.Module):
    """A layer that divides activations in training by the rate of the submodel (Diao et al. 2021).

    The rate is the share of units that the submodel has. Thus a submodel of rate 1/2 trains with activations as large
    as those of the full model in evaluation. A norm layer after a scaler would undo its effect. Therefore only a model
    without norm layers has scalers, one after each convolution.
    """

    rate: float = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x / self.rate


def set_scaler_rate(module: nn.Module, rate: float) -> None:
    """Set the rate, 0 < rate <= 1, of every `Scaler` in `module`."""
    if not 0 < rate <= 1:
        raise InputError("rate", got=rate, expected="a number over 0 and at most 1")
    for part in module.modules():
        if isinstance(part, Scaler):
            part.rate = rate
