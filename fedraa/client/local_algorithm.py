"""The interface of local training beyond plain steps: personal models, and values that a client keeps between tasks."""

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
    """One task in training, as a LocalAlgorithm sees it. Buffers are [k], the coordinates of the task's submodel."""

    @property
    def weights(self) -> Tensor:
        """The weights that the client sends after training. They are changed in place."""

    @property
    def received(self) -> Tensor:
        """The weights before training."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The kept buffers of the client by name. They are changed in place and kept after the task."""

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """The buffers that the server's state has sent with the task, 0 at coordinates whose weights are masked."""

    @property
    def reply(self) -> dict[str, Tensor]:
        """The buffers [k] that the client sends beside the weights. The algorithm fills it."""

    @property
    def personal(self) -> Tensor:
        """True for coordinates of personal layers."""

    @property
    def module(self) -> nn.Module:
        """The module of the submodel. Its parameters are views of `weights`."""

    @property
    def server_step(self) -> int:
        """The number of server steps, or rounds, before the task was sent."""

    @property
    def prox_mu(self) -> float:
        """The weight of the proximal term of the settings."""

    @property
    def lr(self) -> float:
        """The learning rate of the current minibatch."""

    def minibatches(self, stream: str = "", epochs: int | None = None) -> Iterator[tuple[Any, Tensor]]:
        """Yield the inputs and labels of each minibatch. Only minibatches of the stream "" count as local steps.

        Args:
            stream: The name of a random order. Orders of different names are independent.
            epochs: Passes over the data. None: the length of the task.
        """

    def step(
        self,
        inputs: Any,
        labels: Tensor,
        only: Tensor | None = None,
        penalty: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take a step of the local optimizer. On a minibatch of the stream "", its loss is part of the training loss.

        Args:
            inputs: The inputs of a minibatch.
            labels: Its labels.
            only: True for the coordinates that may move; None: all.
            penalty: Returns a term to add to the loss, after each forward pass; None: no term.
        """

    def forward(self, weights: Tensor, inputs: Any) -> None:
        """Run the module with other weights, without gradients and dropout. A hook may read the values of a layer."""

    def gradient(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the transformed gradient at `weights`. The next call overwrites the gradient.

        The algorithm must set `needs_whole_gradient`.
        """

    def record_loss(self, loss: Tensor) -> None:
        """Add the loss of a minibatch to the training loss. Needed only for minibatches without a call of `step`."""

    def separate_steps(self, weights: Tensor | None = None, pull: float = 0.0) -> AbstractContextManager[None]:
        """Take the steps in this `with` block with a new optimizer, without SAM and terms that the server sends.

        Args:
            weights: The weights that these steps train, in place. None: the weights of the run.
            pull: The weight of a proximal term to the received weights.
        """

    def add_term(self, term: GradientTransform) -> None:
        """Change the gradient of every step by this term, before all other terms."""


@dataclass(frozen=True)
class LocalAlgorithm:
    """The local training of one task. This class takes the configured local steps and keeps nothing.

    A subclass overrides `train`, and declares in `kept` the values that a client keeps between its tasks:

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
        needs_whole_gradient: True if `train` calls `run.gradient`.
        replies: Names of the buffers that `train` puts into `run.reply`.
        needs: Names of the fields of LocalTraining that must have a value that is not 0 or empty.
        classifies: True if it needs one label per sample.
        refuses: The settings that would break the method's mathematics, with the reasons. The keys are those of
            `check_terms` in composition/compatibility.py.
    """

    has_personal_model: ClassVar[bool] = False
    needs_whole_gradient: ClassVar[bool] = False
    replies: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    classifies: ClassVar[bool] = False
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        """The buffers that each client keeps."""
        return ()

    @property
    def passes(self) -> float:
        """Additional forward and backward passes for each minibatch."""
        return 0

    @property
    def epochs(self) -> int:
        """Additional passes over the client's data in each task."""
        return 0

    def check_model(self, module: nn.Module) -> None:
        """Raise InputError if the algorithm cannot train this model. A run calls it before its start."""

    def train(self, run: LocalRun) -> None:
        """Train the task. `run` is the task in training."""
        for inputs, labels in run.minibatches():
            run.step(inputs, labels)

    def personal_model(self, kept: Mapping[str, Vector], params: Vector) -> Vector:
        """Return the personal model [d] of a client that has trained.

        Args:
            kept: The client's values by the names of `kept`, NaN at coordinates that it has never trained.
            params: The global model [d], with the client's personal layers.
        """
        return params


def trained_or_global(values: Vector, params: Vector) -> Vector:
    """Return kept values [d], with the global model [d] at coordinates that the client has never trained."""
    return np.where(np.isnan(values), params, values)
