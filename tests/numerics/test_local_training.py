"""Local training, option by option, against NumPy and against the definitions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy_mlp import Batch, Weights, gradient, train
from torch import nn

from fedraa.client import LocalTraining
from fedraa.client.activation_scale import scale_readers
from fedraa.client.model_settings import ModelSettings
from fedraa.client.trainer import Trainer
from fedraa.messages import Task
from fedraa.rng import generator
from fedraa.submodels import Traced, flatten_parameters, load_parameters
from fedraa.submodels.indices import make_fragments
from fedraa.submodels.tracing.trace import trace_module

FEATURES, HIDDEN, CLASSES = 3, 5, 4
LR, SEED, CLIENT, TURN = 0.3, 11, 2, 1
RNG = np.random.default_rng(1)
X = RNG.normal(size=(23, FEATURES)).astype(np.float32)
Y = RNG.integers(0, CLASSES, 23)


def traced(hidden: int = HIDDEN, *dropout: nn.Module) -> Traced:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), *dropout, nn.Linear(hidden, CLASSES))
    return trace_module(module, torch.from_numpy(X[:2]))


def task(params: np.ndarray, widths: tuple[int, ...] = (HIDDEN,), *, client: int = CLIENT, lr: float = LR) -> Task:
    return Task(
        id=0, client=client, turn=TURN, fragment=0, version=0, step=0, widths=widths, buffer=params, lr=lr, cost=1.0
    )


def batches(size: int, epochs: int) -> Iterator[Batch]:
    rng = generator(SEED, "batches", CLIENT, TURN)
    for _ in range(epochs):
        order = rng.permutation(len(Y))
        for start in range(0, len(Y), size):
            rows = order[start : start + size]
            yield X[rows], Y[rows]


def result(solver: LocalTraining) -> np.ndarray:
    model = traced()
    return Trainer(model, solver, seed=SEED).train(task(flatten_parameters(model.module)), X, Y).params


def received() -> Weights:
    return Weights.of(flatten_parameters(traced().module), FEATURES, HIDDEN, CLASSES)


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"momentum": 0.9},
        {"prox_mu": 0.5},
        # The momentum includes the proximal term.
        {"prox_mu": 0.5, "momentum": 0.9},
        {"sam_rho": 0.2},
        # The ascent of SAM uses only the gradient of the loss.
        {"sam_rho": 0.2, "prox_mu": 0.5, "momentum": 0.9},
    ],
)
def test_terms_follow_the_formula(terms: dict[str, float]) -> None:
    """A task has two epochs of batches of 8, 8 and 7 samples."""
    got = result(LocalTraining(**({"momentum": 0.0} | terms), batch_size=8, epochs=2))
    expected = train(received(), batches(8, 2), lr=LR, **terms).flat()
    np.testing.assert_allclose(got, expected, atol=1e-6)
    plain = train(received(), batches(8, 2), lr=LR).flat()
    assert not terms or np.abs(expected - plain).max() > 1e-2


def test_steps_replace_epochs() -> None:
    """Seven steps are two passes of three minibatches and the first of a third."""
    got = result(LocalTraining(momentum=0.5, batch_size=8, epochs=1, steps=7))
    expected = train(received(), [*batches(8, 3)][:7], lr=LR, momentum=0.5).flat()
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_local_training_counts_its_steps_and_samples() -> None:
    model = traced()
    for solver, steps, samples in [
        (LocalTraining(batch_size=8, epochs=2), 6, 46),
        (LocalTraining(batch_size=8, epochs=9, steps=7), 7, 2 * (8 + 8 + 7) + 8),
        (LocalTraining(batch_size=100, epochs=9, steps=7), 7, 7 * 23),
        (LocalTraining(batch_size=100, epochs=2, sam_rho=0.1), 2, 46),
    ]:
        assert Trainer(model, solver, seed=SEED).train(task(flatten_parameters(model.module)), X, Y).steps == steps
        assert (solver.count_steps(23), solver.count_samples(23)) == (steps, samples)
    assert (LocalTraining().passes, LocalTraining(sam_rho=0.1).passes) == (1, 2)


@pytest.mark.parametrize("radius", [0.05, 0.7])
def test_sam_takes_its_gradient_at_distance_rho_on_the_same_minibatch(radius: float) -> None:
    """One norm is over all trained coordinates: ||w~ - w|| = rho. The reported loss is the loss at w."""
    model = traced()
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    trainer = Trainer(model, LocalTraining(momentum=0.0, batch_size=8, steps=3, sam_rho=radius), seed=SEED)
    module = trainer._model((HIDDEN,)).module
    module.register_forward_pre_hook(lambda m, inputs: seen.append((flatten_parameters(m), inputs[0].numpy().copy())))
    update = trainer.train(task(flatten_parameters(model.module)), X, Y)

    assert len(seen) == 6
    losses = []
    for number, (x, y) in enumerate([*batches(8, 1)][:3]):
        (w, first), (perturbed, second) = seen[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(first, second)
        assert np.linalg.norm(perturbed - w) == pytest.approx(radius, rel=1e-5)
        weights = Weights.of(w, FEATURES, HIDDEN, CLASSES)
        direction = gradient(weights, x, y).flat()
        np.testing.assert_allclose(perturbed - w, radius * direction / np.linalg.norm(direction), atol=1e-6)
        logits = weights.logits(x)
        losses.append(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]))
    assert update.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_sam_with_a_zero_gradient_does_not_move() -> None:
    """All samples have one label, and the softmax is one-hot: the gradient is 0, and 0 / 0 must not give NaN."""
    model = traced()
    sure = flatten_parameters(model.module)
    # This is the output bias of label 0.
    sure[-CLASSES] = 1e4
    update = Trainer(model, LocalTraining(batch_size=8, steps=2, sam_rho=0.5), seed=SEED).train(
        task(sure), X, np.zeros_like(Y)
    )
    np.testing.assert_array_equal(update.params, sure)


def test_fragment_scale_makes_full_logits_the_mean_of_the_fragments() -> None:
    """Fragment j trains W_j h_j / r_j + b, so sum_j W_j h_j + b = sum_j r_j logits_j."""
    model = traced(20)
    shares = (0.2, 0.3, 0.5)
    params = flatten_parameters(model.module)
    trainer = Trainer(model, LocalTraining(), seed=SEED, model=ModelSettings(fragment_scale=True))
    x = torch.from_numpy(X)
    total = torch.zeros(len(X), CLASSES)
    for share, kept in zip(shares, make_fragments(model, shares), strict=True):
        fragment = trainer._model(model.widths(kept))
        load_parameters(fragment.module, params[model.flat_index(kept)])
        total += share * fragment.module(x).detach()
    torch.testing.assert_close(total, model.module(x).detach())


def test_fragment_scale_does_not_scale_tokens() -> None:
    """The units of an embedding are its dimension 1. Its inputs are tokens, which are not scaled."""
    net = nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(8 * 3, 2))
    found = trace_module(net, torch.zeros(2, 3, dtype=torch.long))
    assert [group.size for group in found.groups] == [8]
    scale_readers(half := found.make_skeleton((4,)), found, (4,))
    hooked = [bool(layer._forward_pre_hooks) for layer in half.children()]
    assert hooked == [False, False, True]


def test_fragment_scale_trains_the_scaled_network() -> None:
    """The scaled fragment trains V = W / r, whose step is the step of W divided by r^2."""
    model = traced(20)
    [_, kept] = make_fragments(model, (0.2, 0.8))
    start = flatten_parameters(model.module)[model.flat_index(kept)]
    solver = LocalTraining(momentum=0.0, batch_size=23, epochs=1)
    got = Trainer(model, solver, seed=SEED, model=ModelSettings(fragment_scale=True)).train(task(start, (16,)), X, Y)
    theta = Weights.of(start, FEATURES, 16, CLASSES)
    [(x, y)] = batches(23, 1)
    # The logits are (W / r) h + b. By the chain rule dW = d(W / r) / r, and all else is as in the network with W / r.
    g = gradient(theta._replace(w2=theta.w2 / 0.8), x, y)
    expected = theta.plus(-LR, g._replace(w2=g.w2 / 0.8))
    np.testing.assert_allclose(got.params, expected.flat(), atol=1e-6)


def test_step_is_proportional_to_the_learning_rate_of_the_task() -> None:
    model = traced()
    trainer = Trainer(model, LocalTraining(momentum=0.0, batch_size=23, epochs=1), seed=SEED)
    start = flatten_parameters(model.module)
    one, two = (trainer.train(task(start, lr=lr), X, Y).params - start for lr in (0.1, 0.2))
    np.testing.assert_allclose(two, 2 * one, atol=1e-6)


@pytest.mark.parametrize("terms", [{"momentum": 0.9}, {"sam_rho": 0.1, "prox_mu": 0.1}])
def test_result_of_a_task_does_not_depend_on_earlier_tasks(terms: dict[str, Any]) -> None:
    """The bits of a task do not depend on earlier tasks of the worker, also with dropout."""
    model = traced(20, nn.Dropout(0.5))
    solver = LocalTraining(**terms, batch_size=8, epochs=2)
    start = flatten_parameters(model.module)
    small, large = make_fragments(model, (0.2, 0.8))
    mine = task(start[model.flat_index(large)], (16,))
    alone = Trainer(model, solver, seed=SEED).train(mine, X, Y)

    busy = Trainer(model, solver, seed=SEED)
    busy.train(task(start, (20,), client=0), X, Y)
    busy.train(task(start[model.flat_index(small)], (4,)), X[:9], Y[:9])
    busy.train(task(2 * start[model.flat_index(large)], (16,), client=1), X, Y)
    torch.rand(3)
    after = busy.train(mine, X, Y)
    np.testing.assert_array_equal(after.params, alone.params)
    assert after.loss == alone.loss
    other = busy.train(task(mine.params, (16,), client=CLIENT + 1), X, Y)
    assert (other.params != alone.params).any()
    np.testing.assert_array_equal(mine.params, start[model.flat_index(large)])
