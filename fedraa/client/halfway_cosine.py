"""The cosine between the first and the second half of a task's path, from which the server adapts the learning rate."""

from collections.abc import Sequence

import torch
from torch import Tensor


class HalfwayCosine:
    """The cosine between the changes of the weights in the first and in the second half of a task's local steps.

    If steps are short, both changes have similar directions, and the cosine is near 1. If steps are so long that they
    jump over the minimum, the directions are opposite, and the cosine is negative.

    Args:
        steps: Number of local steps of each task. There are several tasks if they are trained as rows of one stack.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        self._halves = [count // 2 for count in steps]
        self._halfway: dict[int, Tensor] = {}

    def record(self, steps: int, weights: Tensor) -> None:
        """Store the weights of each task that has now finished half of its steps.

        Args:
            steps: Number of finished local steps.
            weights: The weights [k], or [height, k] of a stack.
        """
        for row, half in enumerate(self._halves):
            if half == steps > 0:
                self._halfway[row] = _row_of(weights, row).clone()

    def compute(self, received: Tensor, weights: Tensor, row: int = 0) -> float | None:
        """Return the cosine of a task. Return None for a task of one step, or if one half did not change the weights.

        Args:
            received: The weights before training, in the shape of `weights`.
            weights: The trained weights [k], or [height, k] of a stack.
            row: The row of the task in the stack.
        """
        if row not in self._halfway:
            return None
        halfway = self._halfway.pop(row)
        first = halfway - _row_of(received, row)
        second = _row_of(weights, row) - halfway
        norms = float(first.norm() * second.norm())
        if norms == 0:
            return None
        return float(torch.dot(first, second)) / norms


def _row_of(weights: Tensor, row: int) -> Tensor:
    return weights if weights.dim() == 1 else weights[row]
