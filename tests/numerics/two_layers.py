"""The flat vector of a network with two hidden layers and 72 parameters: its tensors, slices and quarters by rank."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy_mlp import Array, layers
from tiny import CLASSES, FEATURES

WIDTHS = (FEATURES, 6, 4, CLASSES)
# The layers have 18 + 6, 24 + 4 and 16 + 4 weights and biases.
SIZE = 72
_ENDS = np.cumsum([0, 18, 6, 24, 4, 16, 4])
TENSORS = [slice(a, b) for a, b in pairwise(_ENDS.tolist())]
# These are all coordinates that belong to a hidden unit: all except the output bias.
MASKABLE = TENSORS[:-1]


def coordinates(kept: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the coordinates [k] of the network that has only these hidden units, and its widths.

    The network has every weight between two kept units, every bias of a kept unit, all features and all classes.
    """
    units = [range(FEATURES), *kept, range(CLASSES)]
    parts = []
    for (weight, bias), (inputs, outputs) in zip(layers(np.arange(SIZE), WIDTHS), pairwise(units), strict=True):
        parts += [weight[np.ix_(list(outputs), list(inputs))].ravel(), bias[list(outputs)]]
    return np.concatenate(parts), [len(kept) for kept in units]


def quarters(theta: Array) -> npt.NDArray[np.int64]:
    """Return each coordinate's quarter by the rank of |theta| in its tensor. 0 is the smallest, 9 is always trained."""
    part = np.full(SIZE, 9)
    for where in MASKABLE:
        values = np.abs(theta[where])
        rank = np.array([int((values < value).sum()) for value in values])
        part[where] = rank * 4 // len(values)
    return part
