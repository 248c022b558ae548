"""Embeddings with an adaptive rate: their steps against torch.optim.Adam, and the models that have such steps."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from first_task import first_task
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.client.embedding_steps import EMBEDDING_RATE, EmbeddingSteps, uses_adam
from fedraa.client.flat_module import FlatModule
from fedraa.client.gradient_transforms import GradientTransform, StepContext
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.client.local_optimizer import SGD, Adam, OptimizerSteps
from fedraa.client.local_step import LocalStep
from fedraa.client.local_training import LocalTraining
from fedraa.client.trainer import Trainer
from fedraa.submodels import flatten_parameters
from fedraa.submodels.flat import find_embeddings
from fedraa.submodels.tracing.trace import trace_module

ADAPTIVE = LocalTraining(lr_schedule="adaptive")


class Words(nn.Module):
    """A linear layer on the mean of the embeddings of a sample's words."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.words = nn.EmbeddingBag(7, 2)
        self.last = nn.Linear(2, 3)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(self.words(words)))
        return logits


def flat_words() -> FlatModule:
    torch.manual_seed(0)
    module = Words()
    size = sum(parameter.numel() for parameter in module.parameters())
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    flat = FlatModule(module, torch.zeros(size), torch.zeros(size))
    flat.weights.copy_(weights)
    return flat


def make_steps(weights: Tensor, sizes: list[int], embeddings: list[slice], *, momentum: float) -> EmbeddingSteps:
    steps = OptimizerSteps(SGD(), weights, {}, momentum=momentum, weight_decay=0.0, sizes=sizes)
    return EmbeddingSteps(steps, weights, embeddings)


def test_embeddings_take_adam_steps_and_other_layers_take_sgd_steps() -> None:
    flat = flat_words()
    other = copy.deepcopy(flat.module)
    embedding = other.get_parameter("words.weight")
    rate = EMBEDDING_RATE * float(embedding.detach().square().mean().sqrt())
    adam = torch.optim.Adam([embedding], lr=rate)
    sgd = torch.optim.SGD([p for p in other.parameters() if p is not embedding], lr=0.1, momentum=0.5)
    steps = make_steps(flat.weights, flat.sizes, flat.embeddings, momentum=0.5)
    for number in range(5):
        words = torch.randint(0, 7, (4, 3), generator=torch.Generator().manual_seed(number))
        labels = torch.tensor([0, 1, 2, 0])
        adam.zero_grad()
        sgd.zero_grad()
        F.cross_entropy(other(words), labels).backward()  # type: ignore[no-untyped-call]
        adam.step()
        sgd.step()
        steps.begin_step()
        flat.backward(F.cross_entropy(flat.module(words), labels))
        if number % 2:
            steps.descend(flat.weights, flat.gradient, ..., 0.1)
        else:
            # Large models take their steps tensor by tensor.
            start = 0
            for size in flat.sizes:
                piece = slice(start, start + size)
                steps.descend(flat.weights[piece], flat.gradient[piece], piece, 0.1)
                start += size
    expected = torch.cat([parameter.detach().flatten() for parameter in other.parameters()])
    torch.testing.assert_close(flat.weights, expected, rtol=1e-5, atol=1e-6)


def test_clients_of_a_batch_take_the_steps_of_single_clients() -> None:
    rows = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(2))
    sizes, embeddings = [3, 4, 2], [slice(3, 7)]
    stack, singles = rows.clone(), [rows[0].clone(), rows[1].clone()]
    stacked_steps = make_steps(stack, sizes, embeddings, momentum=0.5)
    single_steps = [make_steps(single, sizes, embeddings, momentum=0.5) for single in singles]
    for gradient in gradients:
        stacked_steps.begin_step()
        stacked_steps.descend(stack, gradient.clone(), ..., 0.2)
        for row, (steps, single) in enumerate(zip(single_steps, singles, strict=True)):
            steps.begin_step()
            steps.descend(single, gradient[row].clone(), ..., 0.2)
    torch.testing.assert_close(stack, torch.stack(singles))
    assert not torch.equal(stack, rows)


def test_zero_embeddings_take_steps() -> None:
    weights = torch.zeros(4)
    steps = make_steps(weights, [4], [slice(0, 4)], momentum=0.0)
    steps.begin_step()
    steps.descend(weights, torch.tensor([1.0, -1.0, 2.0, 0.0]), ..., 0.1)
    torch.testing.assert_close(weights, EMBEDDING_RATE * torch.tensor([-1.0, 1.0, -1.0, 0.0]))


@pytest.mark.parametrize(
    "settings",
    [
        LocalTraining(),
        replace(ADAPTIVE, weight_decay=0.1),
        replace(ADAPTIVE, control=True),
        replace(ADAPTIVE, grad_mix=0.5),
    ],
)
def test_embeddings_take_no_adam_steps_with_a_fixed_rate_or_dense_gradients(settings: LocalTraining) -> None:
    assert uses_adam(ADAPTIVE, SGD())
    assert not uses_adam(settings, SGD())


class DerivedFromSGD(SGD):
    """An optimizer that may take other steps than SGD."""


def test_embeddings_take_no_adam_steps_with_other_optimizers() -> None:
    assert not uses_adam(ADAPTIVE, Adam())
    assert not uses_adam(ADAPTIVE, SGD(weight_decay=0.1))
    assert not uses_adam(ADAPTIVE, DerivedFromSGD())


def test_embeddings_that_other_layers_use_are_left_out() -> None:
    assert find_embeddings(Words()) == [slice(6, 20)]
    tied = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3))
    assert find_embeddings(tied) == [slice(0, 6)]
    tied[1].weight = tied[0].weight
    assert find_embeddings(tied) == []


class Shift(GradientTransform):
    """A transform that adds 1 to every entry, also to those of tokens that the minibatch lacks."""

    def apply(self, grad: Tensor, context: StepContext) -> None:
        grad.add_(1.0)


@dataclass(frozen=True)
class Shifted(LocalAlgorithm):
    """Local training with a shifted gradient, in one of two models."""

    personal: bool

    def train(self, run: LocalRun) -> None:
        if self.personal:
            with run.separate_steps(run.weights.clone(), pull=1.0):
                for inputs, labels in run.minibatches("personal"):
                    run.step(inputs, labels)
        else:
            run.add_transform(Shift())
        super().train(run)


@pytest.mark.parametrize("personal", [False, True])
def test_sgd_trains_embeddings_if_an_algorithm_adds_a_term(personal: bool) -> None:
    """Only the second model of an algorithm has the proximal term, so that Adam trains the embeddings of the first."""
    flat = flat_words()
    local = replace(ADAPTIVE, steps=2, batch_size=2, lr=0.1, momentum=0.0, algorithm=Shifted(personal))
    traced = trace_module(flat.module, torch.zeros(2, 3, dtype=torch.long))
    steps: list[type] = []
    trainer = Trainer(traced, local, seed=0)
    step = LocalStep.step

    def record(self: LocalStep, *arguments: Any) -> Tensor:
        steps.append(type(self._optimizer))
        return step(self, *arguments)

    params = flatten_parameters(flat.module)
    task = first_task(widths=traced.widths(traced.full()), buffer=params, lr=0.1)
    words, labels = np.array([[0, 1, 2], [3, 0, 1], [2, 2, 0], [1, 3, 3]]), np.array([0, 1, 2, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStep, "step", record)
        update = trainer.train(task, words, labels)
    first = [EmbeddingSteps] if personal else [OptimizerSteps]
    assert steps == [OptimizerSteps] * 2 * personal + first * 2
    # Tokens 4 to 6 are in no sample.
    unused = slice(6 + 2 * 4, 6 + 2 * 7)
    np.testing.assert_allclose(update.params[unused] - params[unused], 0.0 if personal else -0.2, atol=1e-6)
