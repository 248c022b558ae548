"""The cosine between the weight changes in the first and the second half of a task, for an adaptive learning rate."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedraa.submodels.flat import find_layer_weights, locate_parameters

# The learning rate falls if a task changes a weight matrix by more than this multiple of its norm.
LARGEST_CHANGE = 1.0
# A task does not lower the learning rate if it changes every weight matrix by less than this fraction of the norm of
# the matrix.
SMALLEST_CHANGE = 0.05


class HalfwayCosine:
    """The cosine between the weight changes in the first and in the second half of a task's local steps.

    It is near 1 for short steps, and negative for steps that jump over the minimum. Two limits correct it. r is the
    largest relative change of a weight matrix: the norm of its change divided by its norm before the steps.

    - The cosine is at most log(LARGEST_CHANGE / r), because long steps may destroy a model before its cosine falls.
    - If r is below SMALLEST_CHANGE, the cosine is at least `target`, because noisy gradients lower the cosine.

    A parameter with the shape [1, tokens, width] is not a weight matrix, unless it belongs to a linear layer or a
    convolution. It is added to activations, such as the position embedding of a vision transformer, and is often near 0
    at the start.

    Args:
        steps: Number of local steps of each task. Several tasks can be trained together, as the rows of one stack.
        target: The cosine at which the server does not change the learning rate.
        module: The module that is trained.
    """

    def __init__(self, steps: Sequence[int], target: float, module: nn.Module) -> None:
        self._halves = [count // 2 for count in steps]
        self._halfway: dict[int, Tensor] = {}
        self._target = target
        layer_weights = find_layer_weights(module)
        self._matrices = [
            piece
            for parameter, piece in locate_parameters(module)
            if parameter.dim() > 1 and (parameter in layer_weights or not _is_added(parameter))
        ]

    def record(self, steps: int, weights: Tensor) -> None:
        """Store the weights of each task that has finished half of its steps.

        Args:
            steps: Number of finished local steps.
            weights: The weights [k], or [height, k] of a stack.
        """
        for row, half in enumerate(self._halves):
            if half == steps > 0:
                self._halfway[row] = _row_of(weights, row).clone()

    def compute(self, before: Tensor, weights: Tensor, row: int = 0, embeddings: Sequence[slice] = ()) -> float | None:
        """Return the cosine of one task, corrected by the two limits that the class describes.

        Return None for a task of one step, or if the change in one half is 0 or not finite.

        Args:
            before: The weights before the first local step, in the shape of `weights`.
            weights: The trained weights [k], or [height, k] of a stack.
            row: The row of the task in the stack.
            embeddings: Slices of embeddings that do not depend on the learning rate. The cosine ignores them.
        """
        if row not in self._halfway:
            return None
        halfway = self._halfway.pop(row)
        first = halfway - _row_of(before, row)
        second = _row_of(weights, row) - halfway
        for piece in embeddings:
            first[piece] = 0.0
            second[piece] = 0.0
        norms = float(first.norm() * second.norm())
        if norms == 0 or not math.isfinite(norms):
            return None
        cosine = float(torch.dot(first, second)) / norms
        change = self._relative_change(_row_of(before, row), first.add_(second))
        if change == 0:
            return cosine
        if change < SMALLEST_CHANGE:
            cosine = max(cosine, self._target)
        return min(cosine, math.log(LARGEST_CHANGE / change))

    def _relative_change(self, before: Tensor, delta: Tensor) -> float:
        """Return (norm of the delta) / (norm of the weights before the steps), for the weight matrix that changed most.

        Return 0 if all matrices were 0.
        """
        changes = [0.0]
        for piece in self._matrices:
            norm = float(before[piece].norm())
            if norm > 0:
                changes.append(float(delta[piece].norm()) / norm)
        return max(changes)


def _is_added(parameter: Tensor) -> bool:
    return parameter.dim() == 3 and len(parameter) == 1


def _row_of(weights: Tensor, row: int) -> Tensor:
    return weights if weights.dim() == 1 else weights[row]
