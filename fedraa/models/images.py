"""The first layer of the models for colour images."""

import torch
from torch import Tensor, nn


class ImageConv2d(nn.Conv2d):
    """A convolution that lays images [n, c, h, w] out with the channels innermost, and so all maps that follow.

    On a CPU the convolutions and pools of the larger models then take about three quarters of the time. Where `lay_out`
    is off the images stay as they are: vmap knows but one layout.
    """

    lay_out = True

    def forward(self, input: Tensor) -> Tensor:
        if not self.lay_out:
            return super().forward(input)
        return super().forward(input.contiguous(memory_format=torch.channels_last))
