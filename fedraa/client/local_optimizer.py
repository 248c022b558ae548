"""Local optimizers: the step that a client takes along a gradient, with the same arithmetic as torch.optim.

torch.optim itself cannot be used. A step must also work on a chunk of a buffer, on the rows of several clients, and
with a separate count of steps for each coordinate.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.components.calls import change_in_place, convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import is_built_in
from fedraa.errors import InputError
from fedraa.messages import KEPT_PREFIX
from fedraa.numbers import Decay, NotNegative, Positive, UpToOne

# Prefix of the names of optimizer buffers that a client keeps between its tasks.
OPTIMIZER = "optimizer_"
OPTIMIZER_PREFIX = KEPT_PREFIX + OPTIMIZER
# Name of the buffer that holds the number of steps of each coordinate.
STEP = "step"
# Default weight decay of torch.optim.AdamW.
ADAMW_WEIGHT_DECAY = 0.01


class LocalOptimizer(ABC):
    """A rule for the step that a client takes along a gradient.

    A custom optimizer defines `descend`. If it keeps state, it also defines `buffers`:

        class Signs(LocalOptimizer):
            def descend(self, weights, gradient, state, *, lr, momentum, weight_decay):
                weights.sub_(gradient.sign_(), alpha=lr)

    A step must treat every coordinate independently, because the tensors are a whole buffer [k], a chunk of it, or the
    buffers of several clients [clients, k]. It must leave zeros at 0, because coordinates outside of a submodel's mask
    are 0 in all tensors.

    If one of the fields `lr`, `momentum` and `weight_decay` is not None, it overrides the experiment's option.
    """

    lr: Positive | None = None
    momentum: Decay | None = None
    weight_decay: NotNegative | None = None
    has_momentum: ClassVar[bool] = False
    """True if the experiment's option `momentum` has an effect."""
    decoupled: ClassVar[bool] = False
    """True if `descend` applies the weight decay. If it is False, the gradient already contains the decay."""
    needs_whole_gradient: ClassVar[bool] = False
    """True if a step needs all k coordinates of a client together.

    The tensors then have the shape [k], or [clients, k] for several clients, and are never a chunk of the coordinates.
    """
    uses_lr: ClassVar[Literal["every step", "first step", "never"]] = "every step"
    """The steps of a task in which the experiment's option `lr` has an effect."""

    def buffers(self, momentum: float) -> tuple[str, ...]:
        """Return the names of the optimizer's state buffers, which start at 0 for each trained coordinate.

        The caller sets the buffer `STEP` to the number of steps, including the current one.
        """
        return ()

    def kept(self, momentum: float, tensors: int) -> tuple[KeptBuffer, ...]:
        """Return the declarations of the state that a client keeps between tasks.

        Only `local_optimizer_state=keep` uses them.

        Args:
            momentum: The experiment's momentum.
            tensors: Number of trained tensors of the model.
        """
        return tuple(KeptBuffer(OPTIMIZER + name) for name in self.buffers(momentum))

    def start(
        self, weights: Tensor, kept: Mapping[str, Tensor], *, momentum: float, sizes: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return the state at the start of a task. `descend` changes it in place.

        Args:
            weights: The weights that the task will train.
            kept: The state that the client kept from its last task, by buffer name; empty if there is none.
            momentum: The experiment's momentum.
            sizes: Number of coordinates of each trained tensor, in the order of the buffer.
        """
        state: dict[str, Tensor] = {}
        for name in self.buffers(momentum):
            if name in kept:
                state[name] = kept[name]
            elif name == STEP:
                state[name] = weights.new_zeros(1)
            else:
                state[name] = torch.zeros_like(weights)
        if STEP in state and STEP in kept:
            state[STEP] = _collapse_uniform(kept[STEP])
        return state

    def check(self, momentum: float) -> str | None:
        """Return why this optimizer cannot use the experiment's momentum, or None if it can."""
        return None

    @abstractmethod
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
        """Take one step: change `weights` and `state` in place. `gradient` may be overwritten.

        Args:
            weights: The weights.
            gradient: The gradient at these weights.
            state: The buffers that `buffers` names.
            lr: Learning rate of this step.
            momentum: The experiment's momentum.
            weight_decay: The experiment's weight decay.
        """


@dataclass(frozen=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent, equal to torch.optim.SGD."""

    lr: Positive | None = None
    momentum: Decay | None = None
    dampening: UpToOne = 0.0
    weight_decay: NotNegative | None = None
    nesterov: bool = False
    has_momentum: ClassVar[bool] = True

    def buffers(self, momentum: float) -> tuple[str, ...]:
        if not momentum:
            return ()
        if self.dampening:
            return "momentum_buffer", STEP
        return ("momentum_buffer",)

    def check(self, momentum: float) -> str | None:
        if self.nesterov and (self.dampening or not momentum):
            return "nesterov needs a momentum above 0 and no dampening"
        if self.dampening and not momentum:
            return "dampening needs a momentum above 0"
        return None

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
        if not momentum:
            weights.sub_(gradient, alpha=lr)
            return
        velocity = state["momentum_buffer"].mul_(momentum)
        if self.dampening:
            # As in torch.optim.SGD, the dampening does not affect the first step of a coordinate.
            velocity.add_(torch.where(state[STEP] == 1, gradient, gradient * (1 - self.dampening)))
        else:
            velocity.add_(gradient)
        direction = velocity
        if self.nesterov:
            direction = gradient.add_(velocity, alpha=momentum)
        weights.sub_(direction, alpha=lr)


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """Adam, equal to torch.optim.Adam. The weight decay is part of the gradient."""

    lr: Positive | None = None
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative | None = None
    amsgrad: bool = False

    def buffers(self, momentum: float) -> tuple[str, ...]:
        if self.amsgrad:
            return "exp_avg", "exp_avg_sq", STEP, "max_exp_avg_sq"
        return "exp_avg", "exp_avg_sq", STEP

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
        first, second = self.betas
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        squares = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        if self.amsgrad:
            squares = torch.maximum(state["max_exp_avg_sq"], squares, out=state["max_exp_avg_sq"])
        if self.decoupled:
            weights.mul_(1 - lr * weight_decay)
        spread = torch.sqrt(squares, out=gradient).div_(_bias_correction(second, state[STEP]).sqrt_()).add_(self.eps)
        weights.addcdiv_(mean, spread.mul_(_bias_correction(first, state[STEP])), value=-lr)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, equal to torch.optim.AdamW: weights are first multiplied by 1 - lr * decay."""

    decoupled: ClassVar[bool] = True


def _bias_correction(beta: float, steps: Tensor) -> Tensor:
    """Return 1 - beta^steps without loss of digits in float32."""
    return torch.expm1(steps * (math.log(beta) if beta else -math.inf)).neg_()


class OptimizerSteps:
    """A local optimizer with its state in one task. Buffers are [k], or [clients, k] for several clients.

    Args:
        optimizer: The local optimizer.
        weights: The buffer that the task trains.
        received: The state that the client kept from its last task, by buffer name; empty if there is none.
        momentum: The experiment's momentum.
        weight_decay: The experiment's weight decay.
        sizes: Number of coordinates of each trained tensor, in the order of the buffer.
    """

    def __init__(
        self,
        optimizer: LocalOptimizer,
        weights: Tensor,
        received: Mapping[str, Tensor],
        *,
        momentum: float,
        weight_decay: float,
        sizes: Sequence[int],
    ) -> None:
        self._optimizer = optimizer
        self._is_built_in = is_built_in(optimizer)
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._shape = weights.shape
        with convert_errors("local_optimizer", optimizer):
            self._kept = optimizer.kept(momentum, len(sizes))
            self._state = optimizer.start(weights, received, momentum=momentum, sizes=sizes)
        if not isinstance(self._state, dict):
            problem = f"{type(optimizer).__qualname__}.start returned a wrong value"
            raise InputError("local_optimizer", problem, got=self._state, expected="a dict of tensors by buffer name")
        for buffer in self._kept:
            name = buffer.name.removeprefix(OPTIMIZER)
            if name not in self._state:
                problem = f"{type(optimizer).__qualname__}.start returned no buffer {name}"
                raise InputError("local_optimizer", problem, hint="return all buffers that a client keeps")

    def begin_step(self) -> None:
        """Count a new step. Call `descend` afterwards for each chunk of the buffer."""
        if STEP in self._state:
            self._state[STEP] += 1

    def descend(self, weights: Tensor, gradient: Tensor, piece: slice | EllipsisType, lr: float) -> None:
        """Apply the step that `begin_step` counted to one chunk of the buffer that the task trains.

        Args:
            weights: The weights of the chunk.
            gradient: The gradient at these weights.
            piece: The chunk as a slice of the buffer; `...` for the whole buffer.
            lr: Learning rate of this step.
        """
        state = {name: _cut_buffer(buffer, piece) for name, buffer in self._state.items()}
        values = {"lr": lr, "momentum": self._momentum, "weight_decay": self._weight_decay}
        if self._is_built_in:
            self._optimizer.descend(weights, gradient, state, **values)
        else:
            self._descend_custom(weights, gradient, state, values)

    def _descend_custom(
        self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], values: Mapping[str, float]
    ) -> None:
        """Take a step of a custom optimizer. Raise InputError if it fails or makes new tensors."""
        before = dict(state)
        change_in_place(
            "local_optimizer", self._optimizer, "descend", weights, gradient, state, name="weights", **values
        )
        replaced = [buffer for buffer in state if state[buffer] is not before.get(buffer)]
        if replaced:
            problem = f"{type(self._optimizer).__qualname__}.descend put a new tensor into state[{replaced[0]!r}]"
            hint = "name all buffers in `buffers`, and change them in place, as `mul_` and `add_` do"
            raise InputError("local_optimizer", problem, hint=hint)

    def state(self, row: int | EllipsisType = ...) -> dict[str, Tensor]:
        """Return the state that a client keeps, by the names of the buffers in an update.

        `row` is the row of the client if the buffers hold several clients, or `...` for a single client.
        """
        carried: dict[str, Tensor] = {}
        for buffer in self._kept:
            values = self._state[buffer.name.removeprefix(OPTIMIZER)]
            if buffer.size is None:
                values = values.expand(self._shape)
            carried[buffer.key] = values[row]
        return carried


def _collapse_uniform(steps: Tensor) -> Tensor:
    """Return the numbers of steps [..., k], or [..., 1] if they are all equal, to save time."""
    first = steps[..., :1]
    if bool((steps == first).all()):
        return first.clone()
    return steps


def _cut_buffer(buffer: Tensor, piece: slice | EllipsisType) -> Tensor:
    if buffer.shape[-1] == 1 or isinstance(piece, EllipsisType):
        return buffer
    return buffer[..., piece]


LOCAL_OPTIMIZER: ComponentRegistry[LocalOptimizer] = ComponentRegistry(
    "local_optimizer",
    ("descend", "buffers", "check"),
    {"sgd": SGD, "adam": Adam, "adamw": AdamW},
    base="LocalOptimizer",
)
