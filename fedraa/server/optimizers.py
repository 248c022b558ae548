"""Server optimizers: the step along a round's mean delta (Reddi et al. 2021, Algorithm 2).

The delta points in the direction in which the clients moved, so the step adds it. Coordinates that no client trained in
the round do not move, and their moments do not change.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors, copy_component
from fedraa.components.registry import ComponentRegistry
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.messages import Mask, Shapes, Vector
from fedraa.numbers import MAX_FLOAT32, Decay, Positive
from fedraa.vectors.chunked import map_chunks, mask_or_true, scale_chunk
from fedraa.vectors.finite import is_finite

RULES = ("adam", "yogi", "adagrad")


class ServerOptimizer(Stateful, ABC):
    """The server's step at the end of a round.

    A custom optimizer defines `step`, and `start` if it keeps state. `keeps` describes the state, for messages about
    memory. A run works on its own copy of the optimizer.
    """

    server_lr: Positive = 1.0
    keeps: ClassVar[str] = ""

    def bind(self, size: int, tensors: Shapes = ()) -> Self:
        """Return a copy of this optimizer for a model of `size` parameters.

        An optimizer that needs the shapes of the tensors overrides this method. `tensors` is empty if they are unknown.
        """
        own = copy_component("server_optimizer", self)
        with convert_errors("server_optimizer", own):
            own.start(size)
        if not is_finite(own.server_lr) or not 0 < own.server_lr <= MAX_FLOAT32:
            expected = f"a number above 0, up to {MAX_FLOAT32:g}"
            raise InputError("server_optimizer.server_lr", got=own.server_lr, expected=expected)
        return own

    def start(self, size: int) -> None:
        """Allocate the state for `size` parameters."""

    def memory(self, size: int) -> int:
        """Return the bytes of the state for `size` parameters."""
        return 0

    @abstractmethod
    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        """Move the parameters in place.

        Args:
            params: Parameters [d].
            delta: Mean delta of the round [d].
            moved: Mask [d] of the coordinates that may move. All other values must stay exactly the same.
        """


@dataclass
class Sgd(ServerOptimizer):
    """theta += server_lr * mean delta."""

    server_lr: Positive = 1.0

    state_fields: ClassVar[tuple[str, ...]] = ()

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        move_params(params, self.server_lr, delta, moved)


@dataclass
class Momentum(ServerOptimizer):
    """FedAvgM (Hsu, Qi, Brown 2019): m <- beta m + mean delta, theta += server_lr * m.

    Attributes:
        server_lr: Length of the step.
        beta: Decay of the momentum m.
    """

    server_lr: Positive = 1.0
    beta: Decay = 0.9

    keeps: ClassVar[str] = "m [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m",)

    def start(self, size: int) -> None:
        self._m = np.zeros(size, np.float32)

    def memory(self, size: int) -> int:
        return 4 * size

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        def mix_piece(piece: slice) -> None:
            m = self._m[piece]
            np.copyto(m, np.float32(self.beta) * m + delta[piece], where=moved[piece])

        map_chunks(len(params), mix_piece)
        move_params(params, self.server_lr, self._m, moved)


@dataclass
class Adaptive(ServerOptimizer):
    """FedAdam, FedYogi or FedAdagrad: theta += server_lr * m / (sqrt(v) + tau), without bias correction.

    m <- b1 m + (1 - b1) delta, and `rule` selects the formula of v. If |delta| is far larger than tau, the first step
    is about server_lr in every coordinate with adam and yogi at the default betas, and (1 - b1) server_lr with adagrad.

    Attributes:
        rule: The formula of the second moment v: adam, yogi or adagrad.
        server_lr: Length of the step.
        beta1: b1, the decay of the first moment. The paper uses 0 for adagrad, which then has no momentum.
        beta2: Decay of the second moment, not for adagrad.
        tau: Small number that is added to the divisor.
    """

    rule: str = "adam"
    server_lr: Positive = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Positive = 1e-3

    keeps: ClassVar[str] = "m, v [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m", "_v")

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError("rule", got=self.rule, expected=", ".join(RULES))
        if self.rule == "adagrad" and self.beta2 != Adaptive.beta2:
            raise InputError("beta2", "adagrad does not use it", got=self.beta2, hint="leave it out")

    def start(self, size: int) -> None:
        self._m = np.zeros(size, np.float32)
        self._v = np.full(size, self.tau**2, np.float32)

    def memory(self, size: int) -> int:
        return 8 * size

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        def step_piece(piece: slice) -> None:
            m = self._m[piece]
            v = self._v[piece]
            where = mask_or_true(moved[piece])
            np.copyto(v, self._second_moment(v, np.square(delta[piece])), where=where)
            np.copyto(m, np.float32(self.beta1) * m + np.float32(1 - self.beta1) * delta[piece], where=where)
            direction: Vector = np.divide(m, np.sqrt(v) + np.float32(self.tau), dtype=np.float32)
            np.add(params[piece], np.float32(self.server_lr) * direction, out=params[piece], where=where)

        map_chunks(len(params), step_piece)

    def _second_moment(self, v: Vector, square: Vector) -> npt.NDArray[np.floating[Any]]:
        """Return the new second moment, computed from the old second moment `v` and the squared delta."""
        moment: npt.NDArray[np.floating[Any]]
        match self.rule:
            case "adam":
                moment = np.float32(self.beta2) * v + np.float32(1 - self.beta2) * square
            case "yogi":
                moment = v - np.float32(1 - self.beta2) * square * np.sign(v - square)
            case _:
                moment = v + square
        return moment


@dataclass
class AmsGrad(ServerOptimizer):
    """AMSGrad in the form of FADAS (Wang et al. 2024): theta += server_lr * m / (sqrt(v_max) + epsilon).

    m <- b1 m + (1 - b1) delta, v <- b2 v + (1 - b2) delta^2, v_max <- max(v_max, v). All three start at 0.

    Attributes:
        server_lr: Length of the step.
        beta1: b1, the decay of the first moment.
        beta2: b2, the decay of the second moment.
        epsilon: Small number that is added to the divisor.
        corrected: True to divide the moments by 1 - b^t, as in Adam and the authors' code, but not in their formulas.
    """

    server_lr: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-8
    corrected: bool = False

    keeps: ClassVar[str] = "m, v, max v [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m", "_v", "_max", "_steps")

    def start(self, size: int) -> None:
        self._m, self._v, self._max = (np.zeros(size, np.float32) for _ in range(3))
        self._steps = 0

    def memory(self, size: int) -> int:
        return 12 * size

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        self._steps += 1
        first = second = 1.0
        if self.corrected:
            first = 1 - self.beta1**self._steps
            second = 1 - self.beta2**self._steps

        def step_piece(piece: slice) -> None:
            m = self._m[piece]
            v = self._v[piece]
            v_max = self._max[piece]
            where = mask_or_true(moved[piece])
            np.copyto(m, np.float32(self.beta1) * m + np.float32(1 - self.beta1) * delta[piece], where=where)
            square = np.square(delta[piece])
            np.copyto(v, np.float32(self.beta2) * v + np.float32(1 - self.beta2) * square, where=where)
            np.maximum(v_max, v, out=v_max)
            root = np.sqrt(v_max / np.float32(second)) + np.float32(self.epsilon)
            direction = (m / np.float32(first) / root).astype(np.float32)
            np.add(params[piece], np.float32(self.server_lr) * direction, out=params[piece], where=where)

        map_chunks(len(params), step_piece)


def move_params(params: Vector, server_lr: float, direction: Vector, moved: Mask) -> None:
    """Add server_lr * direction to the parameters in place.

    Args:
        params: Parameters [d].
        server_lr: Length of the step.
        direction: Direction [d].
        moved: Mask [d] of the coordinates that move.
    """
    factor = np.float32(server_lr)

    def step_piece(piece: slice) -> None:
        np.add(
            params[piece], scale_chunk(factor, direction[piece]), out=params[piece], where=mask_or_true(moved[piece])
        )

    map_chunks(len(params), step_piece)


SERVER_OPTIMIZER: ComponentRegistry[ServerOptimizer] = ComponentRegistry(
    "server_optimizer",
    ("bind", "step", "state", "restore"),
    {
        "sgd": Sgd,
        "momentum": Momentum,
        "adam": Adaptive,
        "yogi": lambda **values: Adaptive("yogi", **values),
        "adagrad": lambda **values: Adaptive("adagrad", **values),
        "amsgrad": AmsGrad,
    },
    base="ServerOptimizer",
)
