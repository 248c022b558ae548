"""HeteroFL's scaler, which keeps the activations of submodels as large as those of the full model."""

import torch
from torch import nn

from fedraa.errors import InputError


class Scaler(nn.Module):
    """A layer that divides activations in training by the submodel's share of units (Diao et al. 2021).

    A norm layer would undo the effect, so only models without norm layers have scalers, one after each convolution.
    """

    rate: float = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x / self.rate


def set_scaler_rate(module: nn.Module, rate: float) -> None:
    """Set every `Scaler` in `module` to a submodel's share of units, over 0 and at most 1."""
    if not 0 < rate <= 1:
        raise InputError("rate", got=rate, expected="a number over 0 and at most 1")
    for part in module.modules():
        if isinstance(part, Scaler):
            part.rate = rate
