"""Networks of the smaller sizes."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

# Channels of one normalisation group are cut together, so four regions or ten clients need at least this many groups.
GROUPS = 16


class Block(nn.Module):
    """Two 3x3 convolutions on a normed residual stream."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(F.relu(self.norm1(x)))
        out: torch.Tensor = x + self.conv2(F.relu(self.norm2(inner)))
        return out


class DenseBlock(nn.Module):
    """Two dense layers on a normed residual stream, as in a transformer. The input is added to their output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.outer(F.relu(self.inner(self.norm(x))))
        return out


def residual_mlp(classes: int) -> nn.Sequential:
    """Return two residual blocks of width 64 for 32x32 images of three channels.

    It has 230,858 parameters, 33,408 of them in blocks. `digits_residual_mlp`, for 8x8 images of one channel, has
    38,346.
    """
    return _build_mlp(3 * 32 * 32, classes)


def digits_residual_mlp(classes: int) -> nn.Sequential:
    """Return the residual MLP for digits."""
    return _build_mlp(64, classes)


def deep_residual_mlp(classes: int) -> nn.Sequential:
    """Return the residual MLP for 32x32 images with four blocks, the number of blocks of the paper's ViT-Small.

    It has 264,266 parameters, 66,816 of them in blocks.
    """
    return _build_mlp(3 * 32 * 32, classes, blocks=4)


def _build_mlp(features: int, classes: int, *, blocks: int = 2) -> nn.Sequential:
    width = 64
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, width),
        *(DenseBlock(width) for _ in range(blocks)),
        nn.LayerNorm(width),
        nn.Linear(width, classes),
    )


def small_resnet(classes: int) -> nn.Sequential:
    """Return a small CNN for 32x32 images of three channels, in which masked blocks do not stop the signal.

    It has a patch convolution of stride 4 and 32 channels, two residual blocks, a mean over the image and a dense
    layer. With 10 classes it has 39,082 parameters, 37,120 of them in blocks.
    """
    return _build_resnet(3, 4, classes)


def batch_norm_cnn(classes: int) -> nn.Sequential:
    """Return three convolutions with batch norm and a dense layer, for 32x32 images of three channels."""
    return _build_batch_norm_cnn(3, (8, 16, 32), classes)


def digits_batch_norm_cnn(classes: int) -> nn.Sequential:
    """Return two convolutions with batch norm and a dense layer, for 8x8 images of one channel."""
    return _build_batch_norm_cnn(1, (8, 16), classes)


def _build_batch_norm_cnn(channels: int, widths: Sequence[int], classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def digits_resnet(classes: int) -> nn.Sequential:
    """Return the small CNN for 8x8 images of one channel, with patches of 2x2."""
    return _build_resnet(1, 2, classes)


def _build_resnet(channels: int, patch: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 32, patch, stride=patch),
        Block(32),
        Block(32),
        nn.GroupNorm(GROUPS, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
