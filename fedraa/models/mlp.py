"""The multi-layer perceptron."""

import itertools

from torch import nn


def mlp(features: int, classes: int, hidden: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Return a multi-layer perceptron that first flattens its samples.

    Args:
        features: The number of values of a sample.
        classes: The number of outputs.
        hidden: The widths of the hidden layers, each followed by a ReLU.
        dropout: The probability of dropout after each hidden layer; 0 adds no dropout layer.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise((features, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        if dropout > 0:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], classes))
