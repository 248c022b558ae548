"""Optimizers with the learning rate (distance from the first weights) / (norm of all gradients so far).

They are DoG (Ivgi, Hinder, Carmon 2023), LDoG (DoG for each tensor) and DoWG (Khaled, Mishchenko, Jin 2023).

    r   <- max(r, ||x - x_0||); at first r = alpha * (1 + ||x_0||)
    DoG:   G <- G + ||g||^2;        eta = r / sqrt(G)
    DoWG:  v <- v + r^2 * ||g||^2;  eta = r^2 / sqrt(v)
    x   <- x - eta * g

x has the weights, x_0 the received weights, and g is the gradient. ||g|| is over the coordinates that the task trains.

By default x_0, r and the sum (G or v) start again in every task. The first steps are only about alpha * ||x_0|| long,
so the weights hardly change in a task of few steps. If `local_optimizer_state` is keep, r, the sum and x_0 continue
from the client's first task.

The papers also average the weights of all steps. These optimizers do not; the option `polyak_fraction` averages the
global model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, OPTIMIZER, LocalOptimizer
from fedraa.numbers import Positive


@LOCAL_OPTIMIZER.register("dog")
@dataclass(frozen=True)
class DoG(LocalOptimizer):
    """DoG (Ivgi, Hinder, Carmon 2023): eta = r / sqrt(G). The docstring of this module defines r and G.

    The experiment's option `lr` has no effect.

    Attributes:
        alpha: The first r is alpha * (1 + ||x_0||). The authors recommend 1e-4 for models with batch norm.
    """

    alpha: Positive = 1e-6

    needs_whole_gradient: ClassVar[bool] = True
    uses_lr: ClassVar[Literal["every step", "first step", "never"]] = "never"
    per_tensor: ClassVar[bool] = False
    """True if each tensor of the model has a separate r and a separate sum."""

    def kept(self, momentum: float, tensors: int) -> tuple[KeptBuffer, ...]:
        count = tensors if self.per_tensor else 1
        numbers = [KeptBuffer(OPTIMIZER + name, size=count) for name in ("radius", "total")]
        return (KeptBuffer(OPTIMIZER + "origin", "received"), *numbers)

    def start(
        self, weights: Tensor, kept: Mapping[str, Tensor], *, momentum: float, sizes: Sequence[int]
    ) -> dict[str, Tensor]:
        if not self.per_tensor:
            sizes = [weights.shape[-1]]
        origin = kept.get("origin", weights)
        numbers = {name: weights.new_zeros(*weights.shape[:-1], len(sizes)) for name in ("radius", "total")}
        numbers |= {name: kept[name] for name in numbers if name in kept}
        return {"origin": torch.where(origin.isnan(), weights, origin), "sizes": torch.tensor(sizes)} | numbers

    def descend(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        sizes = state["sizes"].tolist()
        radius = state["radius"]
        first = self.alpha * (1 + _norms(state["origin"], sizes))
        torch.maximum(radius, torch.maximum(first, _norms(weights - state["origin"], sizes)), out=radius)
        total = state["total"].add_(self._term(radius, _norms(gradient, sizes)))
        rate = torch.where(total > 0, self._step(radius) / total.sqrt(), 0.0)
        for tensor, change, length in zip(
            torch.split(weights, sizes, -1), torch.split(gradient, sizes, -1), torch.split(rate, 1, -1), strict=True
        ):
            tensor.sub_(change.mul_(length))

    def _term(self, radius: Tensor, norm: Tensor) -> Tensor:
        """Return the value that a step adds to the sum: ||g||^2 for DoG, r^2 * ||g||^2 for DoWG."""
        return norm.square()

    def _step(self, radius: Tensor) -> Tensor:
        """Return the numerator of the learning rate: r for DoG, r^2 for DoWG."""
        return radius


@LOCAL_OPTIMIZER.register("ldog")
@dataclass(frozen=True)
class LDoG(DoG):
    """LDoG (Ivgi, Hinder, Carmon 2023): DoG with a separate r and a separate G for each tensor of the model.

    The docstring of this module defines r and G.
    """

    per_tensor: ClassVar[bool] = True


@LOCAL_OPTIMIZER.register("dowg")
@dataclass(frozen=True)
class DoWG(DoG):
    """DoWG (Khaled, Mishchenko, Jin 2023): eta = r^2 / sqrt(v). The docstring of this module defines r and v."""

    def _term(self, radius: Tensor, norm: Tensor) -> Tensor:
        return (radius * norm).square()

    def _step(self, radius: Tensor) -> Tensor:
        return radius.square()


def _norms(values: Tensor, sizes: list[int]) -> Tensor:
    """Return the norms [..., tensors] of the tensors of these sizes in a buffer [..., k]."""
    return torch.stack([torch.linalg.vector_norm(tensor, dim=-1) for tensor in torch.split(values, sizes, -1)], -1)
