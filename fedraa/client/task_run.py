"""The task that a LocalAlgorithm trains: its steps, minibatches and kept values."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fedraa.client.flat_module import FlatModule
from fedraa.client.gradient_transforms import GradientTransform
from fedraa.client.halfway_cosine import HalfwayCosine
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_step import LocalStep, Penalty
from fedraa.components.calls import convert_custom_errors
from fedraa.data.tree import map_tree
from fedraa.errors import InputError
from fedraa.messages import KEPT_PREFIX, Vector

Minibatches = Callable[[str, int | None], Iterator[tuple[Any, Tensor]]]


class TaskRun:
    """One task in training on a worker, with the interface LocalRun.

    Args:
        local_step: The local steps, with the weights of the task loaded.
        minibatches: A function that takes the name of a random stream and a number of epochs, and returns minibatches.
        kept: The buffers that the client keeps between tasks, by name. Received weights replace NaN in a buffer.
        personal: A mask [k] of the coordinates of personal layers; None without personal layers.

    Attributes:
        total: The sum of the losses of all local steps.
        steps: The number of local steps so far.
        halfway: The record of the weights after half of the local steps; None if the learning rate is not adaptive.
        before_steps: The weights before the first local step; empty if the learning rate is not adaptive.
    """

    def __init__(
        self, local_step: LocalStep, minibatches: Minibatches, kept: Mapping[str, Vector], personal: Tensor | None
    ) -> None:
        self.weights = local_step.model.weights
        assert isinstance(local_step.model, FlatModule)
        self._model = local_step.model
        self.module = local_step.model.module
        self.prox_mu = local_step.settings.prox_mu
        self.server_step = local_step.task.step
        self.total = torch.zeros((), device=self.weights.device)
        self.steps = 0
        self.halfway: HalfwayCosine | None = None
        self.before_steps = self.weights[:0]
        self._step = self._shared_step = local_step
        self._minibatches = minibatches
        # The number of each minibatch in the stream "", by its labels. It is None for minibatches of other streams. The
        # keys are compared by identity, and do not keep labels in memory.
        self._numbers: MutableMapping[Tensor, int | None] = WeakIdKeyDictionary()
        self._latest: int | None = None
        self._personal = personal
        self.reply: dict[str, Tensor] = {}
        self.state: dict[str, Tensor] = {}
        for name, values in kept.items():
            buffer = torch.tensor(values, device=self.weights.device)
            if buffer.isnan().any():
                buffer = torch.where(buffer.isnan(), self.received, buffer)
            self.state[name] = buffer

    @cached_property
    def received(self) -> Tensor:
        return self._step.received_buffer(self._step.task.params)

    @cached_property
    def sent(self) -> Mapping[str, Tensor]:
        task = self._step.task
        buffers: dict[str, Tensor] = {}
        for name in task.extras:
            if name.startswith(KEPT_PREFIX):
                continue
            values = task.extra_values(name)
            if values.shape == self.weights.shape:
                buffers[name] = self._step.received_buffer(values)
            else:
                buffers[name] = torch.tensor(values, device=self.weights.device)
        return buffers

    @property
    def personal(self) -> Tensor:
        if self._personal is None:
            return torch.zeros_like(self.weights, dtype=torch.bool)
        return self._personal

    @property
    def lr(self) -> float:
        return self._step.rate(max(0, self.steps - 1))

    def minibatches(self, stream: str = "", epochs: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        for batch in self._minibatches(stream, epochs):
            number = None
            if stream == "":
                if self.halfway is not None:
                    self.halfway.record(self.steps, self.weights)
                    if self.steps == 0:
                        self.before_steps = self.weights.clone()
                number = self.steps
                self.steps += 1
            self._latest = number
            self._numbers[batch[1]] = number
            yield batch

    def step(self, inputs: Any, labels: Tensor, only: Tensor | None = None, penalty: Penalty | None = None) -> None:
        # If an algorithm changed the labels, they belong to the minibatch that was yielded last.
        number = self._numbers.get(labels, self._latest)
        if self._step is self._shared_step:
            # A minibatch of another stream has the learning rate of the latest local step, which `lr` returns.
            self._step.position = max(0, self.steps - 1) if number is None else number
        if only is None:
            loss = self._step.step(inputs, labels, penalty)
        else:
            before = self.weights.clone()
            with self._step.limit_to(only):
                loss = self._step.step(inputs, labels, penalty)
            self.weights.copy_(torch.where(only, self.weights, before))
        if number is not None:
            self.record_loss(loss)

    def gradient(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        self._refuse_chunks("run.gradient needs")
        # A module may change its inputs in place, and the caller may need them again.
        return self._step.gradient(map_tree(Tensor.clone, inputs), labels)

    def forward(self, weights: Tensor, inputs: Any) -> None:
        self._model.forward_with(weights, map_tree(Tensor.clone, inputs))

    def output_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._model.output_loss(outputs, labels)

    def record_loss(self, loss: Tensor) -> None:
        self.total += loss

    @contextmanager
    def separate_steps(self, weights: Tensor | None = None, pull: float = 0.0) -> Iterator[None]:
        shared_step = self._step
        shared = self.weights.clone()
        if weights is not None:
            self.weights.copy_(weights)
        # Some optimizers measure distances from the weights with which they start.
        self._step = shared_step.restart(self.received, pull)
        yield
        if weights is not None:
            weights.copy_(self.weights)
            self.weights.copy_(shared)
        self._step = shared_step
        if weights is None and not self.steps:
            shared_step.start_optimizer()

    def add_transform(self, transform: GradientTransform) -> None:
        if not isinstance(transform, GradientTransform):
            problem = "run.add_transform got a wrong value"
            raise InputError("method.local.algorithm", problem, got=transform, expected="a GradientTransform")
        if transform.whole:
            self._refuse_chunks(f"{type(transform).__qualname__} in run.add_transform needs")
        self._step.add_transform(transform)

    def _refuse_chunks(self, what: str) -> None:
        """Raise InputError if the steps of a large model would compute the gradient in chunks."""
        if not self._step.settings.algorithm.needs_whole_gradient:
            problem = f"{what} the whole gradient"
            hint = f"set needs_whole_gradient = True in {type(self._step.settings.algorithm).__qualname__}"
            raise InputError("method.local.algorithm", problem, hint=hint)

    def train_with(self, algorithm: LocalAlgorithm) -> None:
        """Train the task. Raise InputError if a custom algorithm fails or leaves a wrong result."""
        with convert_custom_errors("method.local.algorithm", algorithm):
            algorithm.train(self)
        self._check_result(algorithm)

    def _check_result(self, algorithm: LocalAlgorithm) -> None:
        """Raise InputError if `algorithm.train` took no step, replaced the weights, or left a wrong value."""
        train = f"{type(algorithm).__qualname__}.train"
        if self.weights is not self._model.weights:
            problem = f"{train} put a new tensor into run.weights"
            raise InputError("method.local.algorithm", problem, hint="change run.weights in place, as `copy_` does")
        if not self.steps:
            hint = "call run.step for each minibatch of run.minibatches()"
            raise InputError("method.local.algorithm", f"{train} took no local step", hint=hint)
        for name, buffers in (("reply", self.reply), ("state", self.state)):
            for key, values in buffers.items():
                if not isinstance(values, Tensor):
                    problem = f"{train} left a wrong value in run.{name}[{key!r}]"
                    raise InputError("method.local.algorithm", problem, got=values, expected="a tensor")
