"""Gradient transforms: components that change the gradient of a local step, such as a proximal term or clipping."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.numbers import NotNegative, Positive, UpToOne

# Before a division by the norm of a gradient, this number is added to the norm, because the norm may be 0.
EPSILON = 1e-12


class StepContext(NamedTuple):
    """The weights at which a local step computed its gradient.

    Attributes:
        weights: Weights before the step, in the shape of the gradient.
        received: Weights that the client received from the server, in the shape of the gradient. Another task may use
            the same memory later, so keep only a clone.
        piece: Position of the gradient in the flat buffer of all trained weights: a slice, or `...` for all.
    """

    weights: Tensor
    received: Tensor
    piece: slice | EllipsisType


class GradientTransform(ABC):
    """A component that changes the gradient of every local step.

    A custom transform defines `apply`:

        class Lasso(GradientTransform):
            def apply(self, grad, context):
                grad.add_(context.weights.sign(), alpha=1e-4)

    `apply` must change each element independently, because `grad` may be a whole gradient [k], a chunk of it, or the
    gradients of several clients [clients, k].

    Attributes:
        whole: True if `apply` needs the whole gradient, for example its norm. Then `apply` never gets a chunk.
        masked: True if `apply` may change elements outside of a submodel's mask. These changes are then undone. False
            saves time, but then `apply` must not change an element whose gradient and weights are 0.
    """

    whole: ClassVar[bool] = False
    masked: ClassVar[bool] = True

    @abstractmethod
    def apply(self, grad: Tensor, context: StepContext) -> None:
        """Change the gradient `grad` in place.

        Args:
            grad: The gradient.
            context: The weights at which it was computed.
        """

    def begin(self, extras: Mapping[str, Tensor]) -> "GradientTransform":
        """Return the transform to use for one task.

        Args:
            extras: The buffers [k] that the server sent with the task, by name.
        """
        return self


@dataclass(frozen=True)
class Proximal(GradientTransform):
    """The proximal term: add rho (w - w_received), the gradient of (rho/2) ||w - w_received||^2.

    FedProx, FedAsync and Fed-RAA (eq. 2) use it.
    """

    rho: NotNegative
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.add_(context.weights, alpha=self.rho).sub_(context.received, alpha=self.rho)


@dataclass(frozen=True)
class AddVector(GradientTransform):
    """Add a fixed vector to every gradient.

    Attributes:
        vector: The vector [k]; None before `begin`. The server sends it as the buffer `control`. In SCAFFOLD, it is
            c - c_i.
    """

    vector: Tensor | None = None

    def begin(self, extras: Mapping[str, Tensor]) -> GradientTransform:
        return AddVector(_require_buffer(self, extras, "control"))

    def apply(self, grad: Tensor, context: StepContext) -> None:
        assert self.vector is not None
        grad.add_(self.vector[context.piece])


@dataclass(frozen=True)
class ServerMomentum(GradientTransform):
    """Momentum of the server: the gradient g becomes m * g + (1 - m) * momentum (FedCM, MoFedSAM, MimeLite).

    Attributes:
        grad_mix: The weight m of the gradient.
        momentum: The server's momentum [k]; None before `begin`.
    """

    grad_mix: UpToOne
    momentum: Tensor | None = None

    def begin(self, extras: Mapping[str, Tensor]) -> GradientTransform:
        return ServerMomentum(self.grad_mix, _require_buffer(self, extras, "momentum"))

    def apply(self, grad: Tensor, context: StepContext) -> None:
        assert self.momentum is not None
        grad.mul_(self.grad_mix).add_(self.momentum[context.piece], alpha=1 - self.grad_mix)


@dataclass(frozen=True)
class Clipping(GradientTransform):
    """Gradient clipping: scale a gradient with a norm above `bound` to the norm `bound`."""

    bound: Positive
    whole: ClassVar[bool] = True
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.mul_(torch.clamp(self.bound / (gradient_norm(grad) + EPSILON), max=1.0))


@dataclass(frozen=True)
class WeightDecay(GradientTransform):
    """Weight decay: add decay * w to the gradient."""

    decay: NotNegative
    masked: ClassVar[bool] = False

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.add_(context.weights, alpha=self.decay)


def begin_transforms(transforms: Iterable[GradientTransform], extras: Mapping[str, Tensor]) -> list[GradientTransform]:
    """Return the transforms to use for one task. `extras` has the buffers [k] that the server sent with it, by name.

    Raises InputError if `begin` of a transform fails, or returns anything but a GradientTransform.
    """
    begun = []
    for transform in transforms:
        with convert_errors("gradient_transforms", transform):
            result = transform.begin(extras)
        if not isinstance(result, GradientTransform):
            problem = f"{type(transform).__qualname__}.begin returned a wrong value"
            raise InputError("gradient_transforms", problem, got=result, expected="a GradientTransform")
        begun.append(result)
    return begun


def _require_buffer(transform: GradientTransform, extras: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the buffer of this name that the server sent. Raise InputError if the server did not send it."""
    if name not in extras:
        problem = f"{type(transform).__qualname__} needs the buffer {name}, which the server does not send"
        raise InputError("gradient_transforms", problem, hint="return it from `send` of the method's RoundState")
    return extras[name]


def gradient_norm(gradient: Tensor) -> Tensor:
    """Return the norm [1] of a gradient [k], or the norms [n, 1] of n gradients [n, k]."""
    result: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return result


GRADIENT_TRANSFORM: ComponentRegistry[GradientTransform] = ComponentRegistry(
    "gradient_transforms", ("apply", "begin"), {}, base="GradientTransform"
)
