"""FedNova against the fixture of its formula, computed with NumPy only."""

import numpy as np
import pytest
from refusals import refuses
from tiny import spec

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.client.local_training import LocalTraining
from fedraa.methods.fednova import NormalisedMean
from fedraa.vectors.delta_view import DeltaView

STEPS = (2, 8, 4)
WEIGHTS = (2.0, 1.0, 1.0)
DELTAS = (-2.0, -4.0, 3.0)


def step(local: LocalTraining, lr: float = 1.0) -> float:
    """Return the step of one coordinate that all clients trained."""
    aggregator = NormalisedMean().bind(1, 3)
    for client, (weight, delta, steps) in enumerate(zip(WEIGHTS, DELTAS, STEPS, strict=True)):
        view = DeltaView(slice(None), np.array([delta], np.float32))
        length = local.path_length(lr, steps)
        aggregator.add(ClientDelta(client, view, weight, lr, steps=steps, path_length=length))
    mean, moved = aggregator.finish(RoundTotals(np.array([3], np.int32), lr))
    assert moved.all()
    return float(mean[0])


def test_plain_sgd_fixture() -> None:
    assert step(LocalTraining(momentum=0.0)) == pytest.approx(-1.75)


def test_a_common_learning_rate_cancels() -> None:
    assert step(LocalTraining(momentum=0.0), lr=0.01) == pytest.approx(-1.75)


def test_momentum_fixture() -> None:
    local = LocalTraining(momentum=0.9)
    assert [local.path_length(1.0, steps) for steps in STEPS] == pytest.approx([2.9, 28.7420489, 9.049])
    assert step(local) == pytest.approx(-3.23377723)


def test_proximal_fixture() -> None:
    local = LocalTraining(momentum=0.0, prox_mu=0.05)
    assert [local.path_length(1.0, steps) for steps in STEPS] == pytest.approx([1.95, 6.73159137, 3.709875])


def test_momentum_with_proximal_term_equals_the_path_of_unit_gradients() -> None:
    """The formula without closed form: SGD of PyTorch's definition on the gradient 1 + mu * (w - w_0), in NumPy."""
    momentum, mu, lr = 0.7, 0.3, 0.2
    w, v = 0.0, 0.0
    for _ in range(6):
        v = momentum * v + (-1.0 + mu * w)
        w -= lr * v
    assert LocalTraining(momentum=momentum, prox_mu=mu).path_length(lr, 6) == pytest.approx(w)


def test_each_coordinate_counts_the_clients_that_trained_it() -> None:
    """Clients 0 and 2 trained the second coordinate, with deltas 2 and 1: the step is 2. The third has no client."""
    aggregator = NormalisedMean().bind(3, 3)
    deltas = ([-2.0, 2.0], [-4.0], [3.0, 1.0])
    for client, (weight, delta, steps) in enumerate(zip(WEIGHTS, deltas, STEPS, strict=True)):
        view = DeltaView(np.arange(len(delta)), np.array(delta, np.float32))
        aggregator.add(ClientDelta(client, view, weight, 0.1, steps=steps, path_length=0.1 * steps))
    mean, moved = aggregator.finish(RoundTotals(np.array([3, 2, 0], np.int32), 0.1))
    assert mean == pytest.approx([-1.75, 2.0, 0.0])
    assert moved.tolist() == [True, True, False]


def test_another_local_optimizer_is_refused() -> None:
    with refuses("local_optimizer"):
        spec("fednova", local_optimizer="adam")
