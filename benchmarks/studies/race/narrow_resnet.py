"""A narrow ResNet-18 with group norm, for the race on digits."""

from torch import nn

from fedraa.models.resnet import Block

# The number of channels of the first stage. It is a quarter of that of ResNet-18.
CHANNELS = 16


def _group_norm(channels: int) -> nn.Module:
    """Return a group norm with `CHANNELS` groups, so that every stage can be cut at the same fractions."""
    return nn.GroupNorm(CHANNELS, channels)


def narrow_resnet(classes: int) -> nn.Sequential:
    """Return a ResNet-18 (He et al. 2016) with group norm and a quarter of the channels, for grey images."""
    widths = [CHANNELS * 2**stage for stage in range(4)]
    blocks: list[nn.Module] = []
    for stage, width in enumerate(widths):
        blocks += [
            Block(widths[max(0, stage - 1)], width, 1 + (stage > 0), _group_norm),
            Block(width, width, 1, _group_norm),
        ]
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
        _group_norm(CHANNELS),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )
