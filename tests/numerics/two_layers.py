"""The flat vector of a network of two hidden layers, 72 parameters: its tensors, slices and quarters by rank."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numpy_mlp import Array, layers
from tiny import CLASSES, FEATURES

WIDTHS = (FEATURES, 6, 4, CLASSES)
SIZE = 72  # 18 + 6 weights and biases, 24 + 4, 16 + 4
_ENDS = np.cumsum([0, 18, 6, 24, 4, 16, 4])
TENSORS = [slice(a, b) for a, b in pairwise(_ENDS.tolist())]
MASKABLE = TENSORS[:-1]  # all but the output bias: what some hidden unit has part in


def coordinates(kept: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Where the parameters [k] of the network of the kept hidden units are in the flat vector, and its widths.

    Every weight between two kept units, every bias of one; all features, all classes.
    """
    units = [range(FEATURES), *kept, range(CLASSES)]
    parts = []
    for (weight, bias), (inputs, outputs) in zip(layers(np.arange(SIZE), WIDTHS), pairwise(units), strict=True):
        parts += [weight[np.ix_(list(outputs), list(inputs))].ravel(), bias[list(outputs)]]
    return np.concatenate(parts), [len(kept) for kept in units]


def quarters(theta: Array) -> npt.NDArray[np.int64]:
    """Which quarter by rank of |theta| within its tensor a coordinate is in, 0 the smallest; 9: always trained."""
    part = np.full(SIZE, 9)
    for where in MASKABLE:
        values = np.abs(theta[where])
        rank = np.array([int((values < value).sum()) for value in values])
        part[where] = rank * 4 // len(values)
    return part
