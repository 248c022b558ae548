"""Multi-layer perceptron."""

import itertools

from torch import nn


def mlp(features: int, classes: int, hidden: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Flatten, then Linear and ReLU (and Dropout, if any) per width in `hidden`, then Linear to `classes`."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise((features, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], classes))
