"""Delta-SGD: each client takes its learning rate from the smoothness of its own loss (Kim et al. 2024).

Round: as in fedavg, but client i takes K steps with its own rate, from x_0 = theta:
    eta_0 = lr, h_0 = 1
    step k >= 1:
        eta_k = min( gamma * ||x_k - x_{k-1}|| / (2 * ||g_k - g_{k-1}||),  sqrt(1 + delta * h_{k-1}) * eta_{k-1} )
        h_k = eta_k / eta_{k-1}
    x_{k+1} = x_k - eta_k * g_k

g is the gradient with all added terms, such as a proximal term, on the coordinates that the task trains. Gradients of
two minibatches also differ by noise, which lowers the rate. The second argument of the minimum lets the rate grow by
about 5 % per step, so the rate of a task with few steps stays near eta_0. If `local_optimizer_state` is keep, a client
starts with the last rate of its previous task. The theory has no momentum, so the optimizer refuses momentum.

Read next: client/local_optimizer.py (the interface of a local optimizer), client/local_step.py (its caller).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedraa.client.gradient_transforms import gradient_norm
from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, OPTIMIZER, STEP, LocalOptimizer
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.numbers import NotNegative, Positive
from fedraa.server.round_update import Mean


@LOCAL_OPTIMIZER.register("delta-sgd")
@dataclass(frozen=True)
class DeltaSGD(LocalOptimizer):
    """Delta-SGD (Kim et al. 2024): SGD with a rate that follows the local smoothness. `lr` is only the first rate.

    Attributes:
        gamma: The smoothness allows gamma * ||x_k - x_{k-1}|| / (2 * ||g_k - g_{k-1}||) as the rate of step k.
            x_k are the weights, and g_k is the gradient.
        delta: A step multiplies the rate by at most sqrt(1 + delta * h). The step before multiplied the rate by h.
    """

    gamma: Positive = 2.0
    delta: NotNegative = 0.1

    needs_whole_gradient: ClassVar[bool] = True
    uses_lr: ClassVar[Literal["every step", "first step", "never"]] = "first step"

    def kept(self, momentum: float, tensors: int) -> tuple[KeptBuffer, ...]:
        return (KeptBuffer(OPTIMIZER + "rate", size=1),)

    def start(
        self, weights: Tensor, kept: Mapping[str, Tensor], *, momentum: float, sizes: Sequence[int]
    ) -> dict[str, Tensor]:
        number = weights.new_zeros(*weights.shape[:-1], 1)
        return {
            "rate": kept.get("rate", number),
            "growth": torch.ones_like(number),
            "gradient": torch.zeros_like(weights),
            STEP: weights.new_zeros(1),
        }

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
        rate = state["rate"]
        # The previous step's length is its rate times the norm of its gradient.
        moved = rate * gradient_norm(state["gradient"])
        change = gradient_norm(gradient - state["gradient"])
        grown = torch.sqrt(1 + self.delta * state["growth"]) * rate
        smooth = self.gamma * moved / (2 * change)
        # `smooth` is 0 if the weights did not change, and the rate would stay 0. `smooth` is infinite if the gradient
        # did not change. In both cases `grown` is the new rate.
        new = torch.where((moved > 0) & (change > 0), torch.minimum(smooth, grown), grown)
        is_first = state[STEP] == 1
        new = torch.where(is_first, torch.where(rate > 0, rate, lr), new)
        state["growth"].copy_(torch.where(is_first, 1.0, new / rate))
        rate.copy_(new)
        state["gradient"].copy_(gradient)
        weights.sub_(gradient.mul_(rate))


register(
    Method(
        name="delta-sgd",
        paper="Kim et al. 2024",
        formula=(
            "As fedavg, but each client takes the largest rate that the smoothness of its loss allows: "
            "`eta_k = min(gamma |x_k - x_{k-1}| / (2 |g_k - g_{k-1}|), sqrt(1 + delta h) eta_{k-1})`."
        ),
        when="There is no time to tune the learning rate, or clients need different ones. `lr` is only the first rate.",
        local=replace(PLAIN_SGD, local_optimizer="delta-sgd"),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="Kim et al. 2024; the values are the same in all its experiments",
            values={"lr": 0.2, "momentum": 0.0},
            unstated="batch size and local epochs of each data set",
        ),
    )
)
