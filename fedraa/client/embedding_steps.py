"""Steps of Adam for embeddings, while SGD with an adaptive learning rate trains all other layers.

A token that is rare in the data has a small mean gradient. With a rate that suits the other layers, SGD hardly moves
the embedding of this token. Therefore Adam trains the embeddings, with a rate that does not adapt.
"""

from collections.abc import Sequence
from itertools import pairwise
from types import EllipsisType

import torch
from torch import Tensor

from fedraa.client.local_optimizer import SGD, Adam, LocalOptimizer, OptimizerSteps
from fedraa.client.local_training import LocalTraining
from fedraa.client.lr_schedule import target_cosine

# Learning rate of Adam, as a multiple of the root mean square of the received embedding.
EMBEDDING_RATE = 0.03


def uses_adam(settings: LocalTraining, optimizer: LocalOptimizer) -> bool:
    """Return True if Adam trains the embeddings.

    Adam does not if the learning rate is not adaptive, or if the local optimizer is not SGD. Neither does it if a term
    such as weight decay gives unused tokens a gradient.
    """
    if target_cosine(settings.lr_schedule) is None or type(optimizer) is not SGD:
        return False
    decays = settings.weight_decay or optimizer.weight_decay
    return not (decays or settings.control or settings.grad_mix != 1 or settings.transforms)


class _AdamSteps:
    """Steps of Adam for one embedding in one task. Adam's state is zero at the start of each task.

    Args:
        received: The received weights of the embedding [k], or [height, k] for several clients.
    """

    def __init__(self, received: Tensor) -> None:
        sizes = [received.shape[-1]]
        self._steps = OptimizerSteps(Adam(), received, {}, momentum=0.0, weight_decay=0.0, sizes=sizes)
        scale = received.square().mean(-1, keepdim=True).sqrt()
        self._scale = torch.where(scale > 0, scale, 1.0)

    def descend(self, weights: Tensor, gradient: Tensor) -> None:
        self._steps.begin_step()
        step = torch.zeros_like(weights)
        self._steps.descend(step, gradient, ..., EMBEDDING_RATE)
        weights.addcmul_(step, self._scale)


class EmbeddingSteps:
    """Steps of Adam for embeddings, and the steps of a local optimizer for all other coordinates.

    It has the interface of OptimizerSteps.

    Args:
        steps: The steps of the local optimizer, for all other coordinates.
        weights: The buffer [k] that the task trains, or [height, k] for several clients. It has the received weights.
        embeddings: The slices of the embeddings, in the order of the buffer.
    """

    def __init__(self, steps: OptimizerSteps, weights: Tensor, embeddings: Sequence[slice]) -> None:
        self._steps = steps
        self._embeddings = {(piece.start, piece.stop): _AdamSteps(weights[..., piece]) for piece in embeddings}
        bounds = [0, *(bound for piece in embeddings for bound in (piece.start, piece.stop)), weights.shape[-1]]
        # These slices cover the whole buffer. Each is one embedding, or the coordinates between two embeddings.
        self._slices = [slice(start, stop) for start, stop in pairwise(bounds) if start < stop]

    def begin_step(self) -> None:
        self._steps.begin_step()

    def descend(self, weights: Tensor, gradient: Tensor, piece: slice | EllipsisType, lr: float) -> None:
        if isinstance(piece, EllipsisType):
            for part in self._slices:
                self.descend(weights[..., part], gradient[..., part], part, lr)
        elif (piece.start, piece.stop) in self._embeddings:
            self._embeddings[piece.start, piece.stop].descend(weights, gradient)
        else:
            self._steps.descend(weights, gradient, piece, lr)

    def state(self, row: int | EllipsisType = ...) -> dict[str, Tensor]:
        return self._steps.state(row)
