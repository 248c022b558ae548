"""ResNet-18 for 32x32 images (He et al. 2016), with a 3x3 stem without pooling.

The arguments of each model function are the shape of the images (channels, height, width) and the number of classes.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from fedraa.models.images import ImageConv2d
from fedraa.models.scaler import Scaler

Norm = Callable[[int], nn.Module]
# In a ResNet-18 the first three stages end after 5, 7 and 9 modules.
ENDS_OF_STAGES = (5, 7, 9)


def group_norm(channels: int) -> nn.Module:
    """Return a group norm with 32 groups (Wu and He 2018).

    A cut between groups does not change the statistics of the remaining groups. All widths have 32
    groups, so every stage can be cut at the same fractions of its channels, the multiples of 1/32.
    """
    return nn.GroupNorm(32, channels)


class Block(nn.Module):
    """Two convolutions with a residual connection, which has a 1x1 convolution if the shapes differ."""

    def __init__(self, channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), norm(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class PreactivatedBlock(nn.Module):
    """A residual block with norm and ReLU before each convolution (He et al. 2016b)."""

    def __init__(self, channels: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm2 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(x))
        shortcut = x
        if self.shortcut is not None:
            shortcut = self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.norm2(out)))
        total: torch.Tensor = out + shortcut
        return total


def _make_stages(block: Callable[[int, int, int, Norm], nn.Module], norm: Norm) -> list[nn.Module]:
    """Return four stages of two blocks. Each stage except the first halves the height and the width of the image."""
    blocks: list[nn.Module] = []
    for channels, width, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        blocks += [block(channels, width, stride, norm), block(width, width, 1, norm)]
    return blocks


def _make_resnet(channels: int, classes: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        ImageConv2d(channels, 64, 3, padding=1, bias=False),
        norm(64),
        nn.ReLU(),
        *_make_stages(Block, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def resnet18(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return a ResNet-18 with group norm, which has no running statistics."""
    return _make_resnet(channels, classes, group_norm)


def resnet18_bn(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return a ResNet-18 with static batch norm.

    Clients train with the statistics of the minibatch. The server estimates running statistics before each evaluation.
    """
    return _make_resnet(channels, classes, nn.BatchNorm2d)


def resnet18_scaler(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return a ResNet-18 with HeteroFL's scaler in place of each norm."""
    return _make_resnet(channels, classes, lambda width: Scaler())


def preact_resnet18(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return a pre-activated ResNet-18 with static batch norm, as in HeteroFL's code."""
    return nn.Sequential(
        ImageConv2d(channels, 64, 3, padding=1, bias=False),
        *_make_stages(PreactivatedBlock, nn.BatchNorm2d),
        nn.BatchNorm2d(512),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )
