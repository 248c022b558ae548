"""HeteroFL's scaler."""

import torch
from torch import nn

from fedraa.errors import InputError


class Scaler(nn.Module):
    """Divides activations by the width rate of the submodel, in training only (Diao et al. 2021).

    A submodel of rate 1/2 thus trains with activations as large as the full model has in evaluation. Right
    before a norm layer it changes nothing, so only a model without norm layers has one after each
    convolution.
    """

    rate: float = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.rate if self.training else x


def set_scaler_rate(module: nn.Module, rate: float) -> None:
    """Set the rate, 0 < rate <= 1, of every `Scaler` in `module`, if it has any."""
    if not 0 < rate <= 1:
        raise InputError("rate", got=rate, expected="a number over 0 and at most 1")
    for part in module.modules():
        if isinstance(part, Scaler):
            part.rate = rate
