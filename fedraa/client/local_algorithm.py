"""The interface of a local algorithm, which defines how a client trains a task."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

from fedraa.client.gradient_transforms import GradientTransform
from fedraa.client.kept_buffer import KeptBuffer
from fedraa.messages import Vector


class LocalRun(Protocol):
    """A task while a client trains it. All buffers have the shape [k], where k is the size of the submodel."""

    @property
    def weights(self) -> Tensor:
        """The weights, which training changes in place. The client sends them to the server after training."""

    @property
    def received(self) -> Tensor:
        """The weights before training."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The kept buffers of the client by name. Change them in place."""

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The buffers that the server sent with the task, by name. They are 0 outside of the task's mask."""

    @property
    def reply(self) -> dict[str, Tensor]:
        """The buffers [k] that the client sends with the weights. The algorithm fills this dict."""

    @property
    def personal(self) -> Tensor:
        """A mask [k] of the coordinates of personal layers."""

    @property
    def module(self) -> nn.Module:
        """The module of the submodel. Its parameters are views of `weights`."""

    @property
    def server_step(self) -> int:
        """The number of server steps (or rounds) before the server sent the task."""

    @property
    def prox_mu(self) -> float:
        """The weight of the proximal term, `LocalTraining.prox_mu`."""

    @property
    def lr(self) -> float:
        """The learning rate of the current minibatch."""

    def minibatches(self, stream: str = "", epochs: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the inputs and labels of each minibatch.

        Args:
            stream: The name of a random order of the samples. Different names give independent orders. Only minibatches
                of the stream "" count as local steps.
            epochs: Number of passes over the data; None for the number of local steps of the task.
        """

    def step(
        self,
        inputs: Any,
        labels: Tensor,
        only: Tensor | None = None,
        penalty: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take one step of the local optimizer on a minibatch.

        If the minibatch is from the stream "" of `minibatches`, its loss is added to the training loss of the task. The
        labels identify the minibatch. Changed labels belong to the minibatch that was yielded last.

        Args:
            inputs: The inputs of the minibatch.
            labels: The labels of the minibatch.
            only: A mask [k] of the coordinates that the step may change; None for all.
            penalty: A function without arguments that returns a term of the loss. It is called after each forward pass.
        """

    def forward(self, weights: Tensor, inputs: Any) -> None:
        """Run the module with other weights, without gradients and dropout. Hooks can read the outputs of layers."""

    def gradient(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the gradient [k] at the current weights, after all gradient transforms.

        The next call overwrites the gradient. An algorithm that calls this method must set `needs_whole_gradient`.
        """

    def output_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the objective for one output of the module, such as the logits of an early exit."""

    def record_loss(self, loss: Tensor) -> None:
        """Add the loss of a minibatch to the training loss of the task. `step` does this itself."""

    def separate_steps(self, weights: Tensor | None = None, pull: float = 0.0) -> AbstractContextManager[None]:
        """Train a second model in a `with` block.

        Its steps use a new optimizer. They use neither SAM nor the server's control variate or momentum.

        Args:
            weights: The weights that these steps train in place; None for `self.weights`.
            pull: The weight of a proximal term that pulls towards the received weights.
        """

    def add_transform(self, transform: GradientTransform) -> None:
        """Add a gradient transform. In every step, it changes the gradient before all other transforms do.

        If the transform has the attribute `whole`, the algorithm must set `needs_whole_gradient`.
        """


def refuse_other_steps(reason: str) -> Mapping[str, str]:
    """Return the `refuses` of an algorithm that takes its own steps: the options that change a step, and the reason."""
    return MappingProxyType(dict.fromkeys(("momentum", "local_optimizer", "local.sam_rho"), reason))


@dataclass(frozen=True)
class LocalAlgorithm:
    """The local training of one task. This base class takes the configured local steps.

    A subclass overrides `train`. It declares in `kept` the values that a client keeps between its tasks:

        @dataclass(frozen=True)
        class Momentum(LocalAlgorithm):
            @property
            def kept(self):
                return (KeptBuffer("last"),)

            def train(self, run):
                super().train(run)
                run.weights.add_(run.state["last"], alpha=0.1)
                run.state["last"].copy_(run.weights - run.received)

    Attributes:
        has_personal_model: True if `personal_model` returns the client's own model.
        needs_whole_gradient: True if `train` calls `run.gradient`, or adds a gradient transform that is `whole`.
        replies: Names of the buffers that `train` puts into `run.reply`. The `asks` of the method's RoundState have the
            same names.
        needs: Names of fields of LocalTraining that the user must set to a value other than 0 or empty.
        classifies: True if the algorithm needs one class label per sample.
        refuses: Maps each option that breaks the method's mathematics to the reason. `_check_refused` in
            composition/compatibility.py lists the possible options.
    """

    has_personal_model: ClassVar[bool] = False
    needs_whole_gradient: ClassVar[bool] = False
    replies: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    classifies: ClassVar[bool] = False
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        """The declarations of the values that each client keeps between tasks."""
        return ()

    @property
    def passes(self) -> float:
        """Additional forward and backward passes per minibatch. They count in the cost of a task."""
        return 0

    @property
    def epochs(self) -> int:
        """Additional passes over the client's data per task. They count in the cost of a task."""
        return 0

    def check_model(self, module: nn.Module) -> None:
        """Raise InputError if the algorithm cannot train this model. A run calls this method before it starts."""

    def train(self, run: LocalRun) -> None:
        """Train one task: change `run.weights` in place."""
        for inputs, labels in run.minibatches():
            run.step(inputs, labels)

    def personal_model(self, kept: Mapping[str, Vector], params: Vector) -> Vector:
        """Return the personal model [d] of a client.

        Args:
            kept: The client's kept buffers by name, with NaN at coordinates that the client has never trained.
            params: The global model [d], but with the personal layers of this client.
        """
        return params


def trained_or_global(values: Vector, params: Vector) -> Vector:
    """Return `values` [d] with each NaN replaced by the number in `params` [d].

    NaN marks a coordinate that the client has never trained.
    """
    return np.where(np.isnan(values), params, values)
