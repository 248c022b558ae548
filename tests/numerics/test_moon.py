"""MOON against a plain PyTorch loop, and its loss against numbers by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import HalfSquare, kept
from refusals import refuses
from tiny import LR, Stepped, minibatches, spec
from torch import nn
from torch.nn import functional as F

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.methods.moon import contrast
from fedraa.submodels import flatten_parameters


def test_contrast_equals_the_numbers_of_a_sample() -> None:
    z = torch.tensor([[2.0, 1.0]], requires_grad=True)
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    loss = contrast(z, near, far, 0.5)
    [gradient] = torch.autograd.grad(loss, z)
    assert float(loss) == pytest.approx(0.34276789, abs=1e-6)
    np.testing.assert_allclose(gradient, [[-0.15573608, 0.31147217]], atol=1e-6)


def test_contrast_of_equal_features_is_ln_2_without_a_gradient() -> None:
    z = torch.tensor([[2.0, 1.0]], requires_grad=True)
    other = torch.tensor([[0.3, 0.7]])
    loss = contrast(z, other, other, 0.5)
    [gradient] = torch.autograd.grad(loss, z)
    assert float(loss) == pytest.approx(math.log(2))
    np.testing.assert_allclose(gradient, [[0.0, 0.0]], atol=1e-7)


def test_model_without_a_linear_layer_is_refused_before_the_run() -> None:
    model = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with refuses("method"):
        build_run(fl.Experiment(method="moon", clients=4), model=model)


class Attention(nn.Module):
    """A model whose last linear layer is in an attention layer, which uses only the weights of this layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.body(x)[:, None]
        output: torch.Tensor = self.attention(tokens, tokens, tokens)[0][:, 0]
        return output


def test_a_last_linear_layer_that_is_not_called_is_named() -> None:
    stepped = Stepped(spec("moon", model=Attention, hidden=fl.Experiment.model_fields["hidden"].default))
    stepped.round()
    with refuses("method", "last linear layer"):
        stepped.train(stepped.server.assign(0, 0.0))


def module_of(run: Any, params: np.ndarray) -> nn.Sequential:
    """Return the flatten, hidden and output layers of the run's model with these parameters."""
    hidden, classes = run.experiment.hidden[0], 4
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, classes)).double()
    nn.utils.vector_to_parameters(torch.from_numpy(params).double(), module.parameters())
    return module


def trained(run: Any, client: int, turn: int, received: np.ndarray, previous: np.ndarray | None) -> np.ndarray:
    """Return the model of a client after SGD with the contrastive loss, if it has a previous model."""
    model, frozen = module_of(run, received), module_of(run, received)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for batch, y in minibatches(run, client, turn):
        x = torch.from_numpy(batch).double()
        optimizer.zero_grad()
        z = model[:-1](x)
        loss = F.cross_entropy(model[-1](z), torch.from_numpy(y))
        if previous is not None:
            near = torch.exp(F.cosine_similarity(z, frozen[:-1](x).detach()) / 0.5)
            far = torch.exp(F.cosine_similarity(z, module_of(run, previous)[:-1](x).detach()) / 0.5)
            loss = loss - 2.0 * torch.log(near / (near + far)).mean()
        loss.backward()
        optimizer.step()
    return flatten_parameters(model)


def test_moon_equals_a_pytorch_loop() -> None:
    run = spec("moon", momentum=0.0, override={"local.algorithm.mu": 2.0})
    stepped = Stepped(run)
    shared = run.params.copy()
    models: list[np.ndarray | None] = [None] * 3
    weights = run.data.sizes / run.data.sizes.sum()
    for turn in range(3):
        stepped.round()
        new = [trained(run, client, turn, shared, models[client]) for client in range(3)]
        shared = np.average(new, axis=0, weights=weights).astype(np.float32)
        models = list(new)
        np.testing.assert_allclose(stepped.server.params, shared, atol=5e-6)
        np.testing.assert_allclose(kept(stepped, "previous_model"), new, atol=5e-6)


def test_first_task_has_the_bits_of_fedavg_and_later_ones_have_not() -> None:
    moon, fedavg = Stepped(spec("moon")), Stepped(spec("fedavg"))
    moon.round()
    fedavg.round()
    np.testing.assert_array_equal(moon.server.params, fedavg.server.params)
    moon.round()
    fedavg.round()
    assert np.abs(moon.server.params - fedavg.server.params).max() > 1e-4


def test_another_objective_than_classification_is_refused() -> None:
    with refuses("objective"):
        spec("moon", objective=HalfSquare())
