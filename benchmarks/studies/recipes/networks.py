"""Small networks. Studies of the sizes `quick` and `standard` use them in place of a paper's networks."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

# Channels are divided into 16 groups. A submodel has all channels of a group or none. The studies divide a model into
# four regions, or among ten clients, so 16 groups are enough.
GROUPS = 16


class Block(nn.Module):
    """A residual block of two 3x3 convolutions, each after a group norm."""

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
    """A residual block of a layer norm and two dense layers, as in a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.outer(F.relu(self.inner(self.norm(x))))
        return out


def residual_mlp(classes: int) -> nn.Sequential:
    """Return an MLP with two residual blocks of width 64, for 32x32 images with three channels.

    With 10 classes it has 230,858 parameters, 33,408 of them in blocks.
    """
    return _build_mlp(3 * 32 * 32, classes)


def digits_residual_mlp(classes: int) -> nn.Sequential:
    """Return an MLP with two residual blocks of width 64, for 8x8 images with one channel.

    With 10 classes it has 38,346 parameters.
    """
    return _build_mlp(64, classes)


def deep_residual_mlp(classes: int) -> nn.Sequential:
    """Return an MLP with four residual blocks for 32x32 images, in place of the ViT-Small in the paper of SubDisMO.

    With 10 classes it has 264,266 parameters, 66,816 of them in blocks.
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
    """Return a CNN with two residual blocks of 32 channels, for 32x32 images with three channels.

    A submodel without a block still works, because of the residual connection. With 10 classes the CNN has 39,082
    parameters, 37,120 of them in blocks.
    """
    return _build_resnet(3, 4, classes)


def batch_norm_cnn(classes: int) -> nn.Sequential:
    """Return a CNN of three convolutions with batch norm and a dense layer, for images with three channels."""
    return _build_batch_norm_cnn(3, (8, 16, 32), classes)


def digits_batch_norm_cnn(classes: int) -> nn.Sequential:
    """Return a CNN of two convolutions with batch norm and a dense layer, for images with one channel."""
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
    """Return a CNN with two residual blocks of 32 channels, for 8x8 images with one channel."""
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
