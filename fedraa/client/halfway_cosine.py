"""The cosine of the two halves of a task's path, from which the server adapts the learning rate."""

from collections.abc import Sequence

import torch
from torch import Tensor


class HalfwayCosine:
    """The cosine of the changes of the weights in the first and in the second half of a task's local steps.

    Successive changes point the same way if the steps are short. They point in opposite ways if the steps jump over the
    minimum along the steepest directions. The rows of a stack are separate tasks.

    Args:
        steps: Number of local steps of each row.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        self._halves = [count // 2 for count in steps]
        self._halfway: dict[int, Tensor] = {}

    def record(self, steps: int, weights: Tensor) -> None:
        """Keep the weights of the rows that have finished half of their steps.

        Args:
            steps: Number of finished local steps.
            weights: The weights [k], or [height, k] of a stack.
        """
        for row, half in enumerate(self._halves):
            if half == steps > 0:
                self._halfway[row] = _row_of(weights, row).clone()

    def compute(self, received: Tensor, weights: Tensor, row: int = 0) -> float | None:
        """Return the cosine of a row; None after a single step, or if the weights did not change in one half.

        Args:
            received: The weights before training, of the shape of `weights`.
            weights: The trained weights [k], or [height, k] of a stack.
            row: The row.
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
