"""The first layer of the models for colour images."""

import torch
from torch import Tensor, nn


class ImageConv2d(nn.Conv2d):
    """A convolution that stores images [n, c, h, w] with the channels innermost, and with them all maps that follow.

    On a CPU the convolutions and pools of the larger models then take about three quarters of the time. Cut layers have
    any number of channels, for which `safe_convolution` makes this format safe. If `lay_out` is False, the images stay
    as they are: vmap supports one layout only.
    """

    lay_out = True

    def forward(self, input: Tensor) -> Tensor:
        if not self.lay_out:
            return super().forward(input)
        return super().forward(input.contiguous(memory_format=torch.channels_last))
