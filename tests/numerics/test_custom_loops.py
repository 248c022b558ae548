"""Custom training loops on `run.module`, for models whose gradients have different buffers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedraa as fl
from fedraa.client import LocalTraining
from fedraa.client.trainer import Trainer
from fedraa.messages import Task
from fedraa.submodels import flatten_parameters
from fedraa.submodels.flat import is_by_piece, is_large
from fedraa.submodels.tracing.trace import trace_module

INPUTS = 784
LR = 0.1
STEPS = 3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, INPUTS)).astype(np.float32)
Y = RNG.integers(0, 10, 40)

# On a CPU, a model of at least 2**17 parameters is updated in chunks if no setting needs its whole gradient. With
# clipping, it has a buffer for the whole gradient. With at least 2**19 parameters, the buffer has no second copy. The
# widths give 15,910, 159,010 and 556,510 parameters.
MODELS = pytest.mark.parametrize(
    ("width", "clip"),
    [(20, 0.0), (200, 0.0), (700, 0.0), (20, 0.5), (200, 0.5), (700, 0.5)],
)


def network(width: int) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, 10))


def train_by_hand(module: nn.Module, clip: float = 0.0) -> np.ndarray:
    """Return the parameters after the steps of SGD on all samples, with PyTorch's own functions."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return flatten_parameters(module)


def train_tasks(width: int, clip: float, algorithm: fl.LocalAlgorithm, tasks: int) -> list[np.ndarray]:
    """Return the parameters after each of several tasks that start at the same weights. Each step is on all samples."""
    traced = trace_module(network(width), torch.from_numpy(X[:2]))
    local = LocalTraining(lr=LR, momentum=0.0, batch_size=len(X), epochs=STEPS, clip=clip, algorithm=algorithm)
    trainer = Trainer(traced, local, seed=1)
    params = flatten_parameters(network(width))
    updates = []
    for step in range(tasks):
        task = Task(step, 0, step, 0, 0, step, (width,), params, LR, 1.0)
        updates.append(trainer.train(task, X, Y).params)
    return updates


def assert_trained(params: np.ndarray, expected: np.ndarray) -> None:
    # The trainer takes the samples in another order.
    np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-6)


def backward(run: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    loss = functional.cross_entropy(run.module(inputs), labels)
    loss.backward()
    return loss.detach()


@dataclass(frozen=True)
class ClearsFirst(fl.LocalAlgorithm):
    """The loop of the FAQ, but without label smoothing."""

    def train(self, run: Any) -> None:
        optimizer = torch.optim.SGD(run.module.parameters(), lr=run.lr)
        for inputs, labels in run.minibatches():
            optimizer.zero_grad()
            run.record_loss(backward(run, inputs, labels))
            optimizer.step()


@dataclass(frozen=True)
class ClearsLast(fl.LocalAlgorithm):
    """A loop that deletes the gradients after each step. Task 0 uses `run.step`, which may leave gradients."""

    def train(self, run: Any) -> None:
        if run.server_step == 0:
            super().train(run)
            return
        optimizer = torch.optim.SGD(run.module.parameters(), lr=run.lr)
        for inputs, labels in run.minibatches():
            run.record_loss(backward(run, inputs, labels))
            optimizer.step()
            optimizer.zero_grad()


@dataclass(frozen=True)
class BeforeStep(fl.LocalAlgorithm):
    """`run.step` after a gradient of the user, which changes no weight. Tasks after task 0 only use `run.step`."""

    leaves: str

    def train(self, run: Any) -> None:
        for inputs, labels in run.minibatches():
            if run.server_step == 0:
                backward(run, inputs, labels)
                if self.leaves != "gradients":
                    run.module.zero_grad(set_to_none=self.leaves == "nothing")
            run.step(inputs, labels)


def test_models_are_below_between_and_above_the_limits() -> None:
    cpu = torch.device("cpu")
    sizes = [len(flatten_parameters(network(width))) for width in (20, 200, 700)]
    assert [is_by_piece(size, cpu) for size in sizes] == [False, True, True]
    assert [is_large(size, cpu) for size in sizes] == [False, False, True]


@MODELS
@pytest.mark.parametrize("loop", [ClearsFirst(), ClearsLast()])
def test_custom_loop_takes_the_steps_of_sgd(loop: fl.LocalAlgorithm, width: int, clip: float) -> None:
    """The settings of `run.step`, such as clipping, do not change a custom loop."""
    expected = train_by_hand(network(width))
    first, *others = train_tasks(width, clip, loop, 3)
    if isinstance(loop, ClearsFirst):
        assert_trained(first, expected)
    for params in others:
        assert_trained(params, expected)


@MODELS
@pytest.mark.parametrize("leaves", ["nothing", "zeros", "gradients"])
def test_steps_after_a_custom_backward_pass_use_only_their_own_gradient(leaves: str, width: int, clip: float) -> None:
    expected = train_by_hand(network(width), clip)
    for params in train_tasks(width, clip, BeforeStep(leaves), 2):
        assert_trained(params, expected)
    assert (expected != flatten_parameters(network(width))).any()


def test_custom_loop_equals_the_built_in_steps_in_a_run_with_a_large_model() -> None:
    """The default mlp has 159,010 parameters for 784 inputs."""
    data = fl.Dataset("random", X, Y, X[:12], Y[:12], 10)
    fedavg = fl.method("fedavg")
    losses = []
    for algorithm in (fl.LocalAlgorithm(), ClearsFirst()):
        method = replace(fedavg, name="loop", local=replace(fedavg.local, momentum=0.0, algorithm=algorithm))
        history = fl.run(method=method, dataset=data, model="mlp", rounds=2, clients=2, engine="local", quiet=True)
        losses.append(history.evals["loss"].tolist())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][0] != losses[0][-1]
