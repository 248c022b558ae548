"""MOON: a contrastive loss holds a client's features near those of the global model (Li et al. 2021, Algorithm 1).

Client n receives theta and keeps its last trained model u_n. z, z_g, z_p are the inputs of the last linear layer of the
current model w, of theta, and of u_n; c is the cosine:
    SGD on f_n(w) + mu * mean over the minibatch of -log( e^(c(z, z_g)/T) / (e^(c(z, z_g)/T) + e^(c(z, z_p)/T)) )
    send w; u_n <- w
Server:
    theta <- mean of the clients' w, weighted by samples

In a client's first task z_p = z_g, so that the term is constant and is not computed. The forward passes of theta and
u_n are without dropout, and batch norm uses the statistics of the minibatch. A projection head is used only if the
user's model has one. With submodels, u_n is cut to the coordinates of the task.

Read next: client/local_algorithm.py (the interface of local training), client/task_run.py (its steps).
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.last_call import LastCall, recorded_call
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.numbers import NotNegative, Positive
from fedraa.server.round_update import Mean


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """Return the mean contrastive loss (MOON, eq. 3): low if `z` [b, k] is similar to `near` and not to `far`."""
    cosines = torch.stack([F.cosine_similarity(z, other, dim=1) for other in (near, far)], dim=1)
    return -F.log_softmax(cosines / temperature, dim=1)[:, 0].mean()


def find_last_linear(module: nn.Module) -> nn.Linear:
    """Return the module's last linear layer. Raise InputError if it has none."""
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linear:
        problem = f"moon compares the inputs of the last linear layer, and {type(module).__name__} has none"
        raise InputError("method", problem, hint="give a model that ends with a linear layer")
    return linear[-1]


def read_features(last_linear: LastCall) -> Tensor:
    """Return the features [b, k]: the input of the last linear layer in the last forward pass."""
    if not last_linear.args:
        problem = "moon compares the inputs of the last linear layer, and a forward pass does not call this layer"
        raise InputError("method", problem, hint="give a model that ends with a linear layer")
    features: Tensor = last_linear.args[0]
    return features.flatten(1)


@dataclass(frozen=True)
class ModelContrast(LocalAlgorithm):
    """Local training with a contrastive loss of the features (MOON).

    Attributes:
        mu: Weight of the contrastive loss.
        temperature: T, by which the loss divides cosines.
    """

    mu: NotNegative = 1.0
    temperature: Positive = 0.5

    classifies: ClassVar[bool] = True

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        return (KeptBuffer("previous_model", "received"),)

    @property
    def passes(self) -> float:
        # Each minibatch also goes forward through two other models: the global model and the client's last model. A
        # forward pass costs a third of a training pass.
        return 2 / 3

    def check_model(self, module: nn.Module) -> None:
        find_last_linear(module)

    def train(self, run: LocalRun) -> None:
        previous = run.state["previous_model"]
        if torch.equal(previous, run.received):
            super().train(run)
        else:
            with recorded_call(find_last_linear(run.module)) as last_linear:
                self._train_with_contrast(run, last_linear, previous)
        previous.copy_(run.weights)

    def _train_with_contrast(self, run: LocalRun, last_linear: LastCall, previous: Tensor) -> None:
        for inputs, labels in run.minibatches():
            run.forward(run.received, inputs)
            near = read_features(last_linear)
            run.forward(previous, inputs)
            far = read_features(last_linear)
            run.step(inputs, labels, penalty=partial(self._penalty, last_linear, near, far))

    def _penalty(self, last_linear: LastCall, near: Tensor, far: Tensor) -> Tensor:
        return self.mu * contrast(read_features(last_linear), near, far, self.temperature)


register(
    Method(
        name="moon",
        paper="Li, He, Song 2021",
        formula="As fedavg; clients add mu times a contrastive loss of their features to the loss.",
        when="Unequal labels and images: features of the clients stay near those of the global model.",
        local=LocalTraining(algorithm=ModelContrast()),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' code and readme, CIFAR-10",
            values={
                "lr": 0.01,
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "local_epochs": 10,
                "batch_size": 64,
                "local.algorithm.mu": 5.0,
                "local.algorithm.temperature": 0.5,
                "weights": "samples",
            },
        ),
    )
)
