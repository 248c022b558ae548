"""Gradient transforms, which change the gradient of a local step one after the other, in chunks of the flat buffer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedraa.components.registry import ComponentRegistry

# Prevents a division by zero if a gradient's norm is 0.
EPSILON = 1e-12


class StepContext(NamedTuple):
    """The weights at which a local step computes its gradient.

    Attributes:
        weights: Weights before the step, of the same shape as the gradient.
        received: Weights that the client received from the server, of the same shape.
        piece: Position of the gradient in the flat buffer of all trained weights: a slice, or `...` for the whole.
    """

    weights: Tensor
    received: Tensor
    piece: slice | EllipsisType


class GradientTransform(ABC):
    """A change of the gradient of every local step, in place.

    A custom transform needs only `apply`:

        class Lasso(GradientTransform):
            def apply(self, grad, context):
                grad.add_(context.weights.sign(), alpha=1e-4)

    The transform must depend only on its arguments, and treat each element independently. A gradient is passed as a
    whole [k], in chunks, or as several clients' gradients [height, k]. A transform that needs the whole gradient sets
    `whole`. If the submodel is masked, changes outside the mask are removed. A transform without such changes sets
    `masked` to False, which saves time.
    """

    whole: ClassVar[bool] = False
    masked: ClassVar[bool] = True

    @abstractmethod
    def apply(self, grad: Tensor, context: StepContext) -> None:
        """Change `grad` [k] in place. `context` holds the weights at which it was computed."""

    def begin(self, extras: Mapping[str, Tensor]) -> "GradientTransform":
        """Return the transform for one task. `extras` holds the buffers [k] that came with the task."""
        return self


@dataclass(frozen=True)
class Proximal(GradientTransform):
    """rho (w - w_received), the gradient of (rho/2) ||w - w_received||^2 (FedProx, FedAsync, Fed-RAA eq. 2)."""

    rho: float
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.add_(context.weights, alpha=self.rho).sub_(context.received, alpha=self.rho)


@dataclass(frozen=True)
class ControlVariate(GradientTransform):
    """g + c - c_i (SCAFFOLD)."""

    control: Tensor | None = None

    def begin(self, extras: Mapping[str, Tensor]) -> GradientTransform:
        return ControlVariate(extras["control"])

    def apply(self, grad: Tensor, context: StepContext) -> None:
        assert self.control is not None
        grad.add_(self.control[context.piece])


@dataclass(frozen=True)
class ServerMomentum(GradientTransform):
    """fresh * g + (1 - fresh) * the server's momentum (FedCM, MoFedSAM, MimeLite)."""

    fresh: float
    momentum: Tensor | None = None

    def begin(self, extras: Mapping[str, Tensor]) -> GradientTransform:
        return ServerMomentum(self.fresh, extras["momentum"])

    def apply(self, grad: Tensor, context: StepContext) -> None:
        assert self.momentum is not None
        grad.mul_(self.fresh).add_(self.momentum[context.piece], alpha=1 - self.fresh)


@dataclass(frozen=True)
class Clipping(GradientTransform):
    """Gradient clipping: a gradient with a norm over `bound` is scaled to the norm `bound`."""

    bound: float
    whole: ClassVar[bool] = True
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.mul_(torch.clamp(self.bound / (gradient_norm(grad) + EPSILON), max=1.0))


@dataclass(frozen=True)
class WeightDecay(GradientTransform):
    """g + decay * w."""

    decay: float
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.add_(context.weights, alpha=self.decay)


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the norm of a gradient [k], or of each row of [height, k]."""
    result: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return result


GRADIENT_TRANSFORM: ComponentRegistry[GradientTransform] = ComponentRegistry(
    "gradient_transforms", ("apply", "begin"), {}
)
