"""Server optimizers: the step that is taken along a round's mean gain (Reddi et al. 2021, Algorithm 2).

A gain points where the clients went: it is added. Coordinates that nobody covered are skipped, moments too,
or momentum would move weights that were not trained.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Vector
from fedraa.submodels.policies.policies import Mask


class ServerOptimizer:
    """Plain steps: theta += server_lr * gain."""

    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        """Moves `params` [d] in place where `moved` [d]; elsewhere they stay bit for bit."""
        np.add(params, np.float32(self.server_lr) * delta, out=params, where=moved)

    def state(self) -> dict[str, Vector]:
        return {}

    def restore(self, state: dict[str, Vector]) -> None:
        """Takes back what `state` gave."""


class AdaptiveStepper(ServerOptimizer):
    """m <- b1 m + (1 - b1) gain; v by `rule`; theta += server_lr * m / (sqrt(v) + tau); no bias correction."""

    def __init__(self, rule: str, server_lr: float, size: int, *, beta1: float, beta2: float, tau: float) -> None:
        super().__init__(server_lr)
        self._rule, self._beta1, self._beta2, self._tau = rule, beta1, beta2, tau
        self._m = np.zeros(size, np.float32)
        self._v = np.full(size, tau**2, np.float32)

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        square = np.square(delta)
        v: npt.NDArray[np.floating[Any]]
        match self._rule:
            case "adam":
                v = np.float32(self._beta2) * self._v + np.float32(1 - self._beta2) * square
            case "yogi":
                v = self._v - np.float32(1 - self._beta2) * square * np.sign(self._v - square)
            case _:
                v = self._v + square
        m = np.float32(self._beta1) * self._m + np.float32(1 - self._beta1) * delta
        np.copyto(self._m, m, where=moved)
        np.copyto(self._v, v, where=moved)
        direction: Vector = np.divide(self._m, np.sqrt(self._v) + np.float32(self._tau), dtype=np.float32)
        super().step(params, direction, moved)

    def state(self) -> dict[str, Vector]:
        return {"m": self._m, "v": self._v}

    def restore(self, state: dict[str, Vector]) -> None:
        self._m[:], self._v[:] = state["m"], state["v"]


class MomentumStepper(ServerOptimizer):
    """m <- beta m + gain; theta += server_lr * m."""

    def __init__(self, server_lr: float, size: int, *, beta: float) -> None:
        super().__init__(server_lr)
        self._beta = np.float32(beta)
        self._m = np.zeros(size, np.float32)

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        np.copyto(self._m, self._beta * self._m + delta, where=moved)
        super().step(params, self._m, moved)

    def state(self) -> dict[str, Vector]:
        return {"m": self._m}

    def restore(self, state: dict[str, Vector]) -> None:
        self._m[:] = state["m"]


@dataclass(frozen=True)
class Sgd:
    """theta += server_lr * mean gain."""

    server_lr: float = 1.0

    def bind(self, size: int) -> ServerOptimizer:
        return ServerOptimizer(self.server_lr)


@dataclass(frozen=True)
class Momentum:
    """FedAvgM (Hsu, Qi, Brown 2019): v <- beta v + mean gain, theta += server_lr * v."""

    server_lr: float = 1.0
    beta: float = 0.9

    keeps: ClassVar[str] = "v [d]"

    def bind(self, size: int) -> ServerOptimizer:
        return MomentumStepper(self.server_lr, size, beta=self.beta)


@dataclass(frozen=True)
class Adaptive:
    """FedAdam, FedYogi, FedAdagrad. With |gain| far over tau the first step is about server_lr everywhere."""

    rule: str = "adam"
    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    keeps: ClassVar[str] = "m, v [d]"

    def bind(self, size: int) -> ServerOptimizer:
        return AdaptiveStepper(self.rule, self.server_lr, size, beta1=self.beta1, beta2=self.beta2, tau=self.tau)
