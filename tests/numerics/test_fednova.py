"""FedNova against the fixture of its formula, computed with NumPy only."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from tiny import Stepped, close, spec
from tiny import steps as count_steps

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.client.local_optimizer import SGD
from fedraa.client.local_training import LocalTraining
from fedraa.methods.fednova import FedNovaRule, NormalisedMean
from fedraa.server.async_rule import AsyncModel, ClientUpdate
from fedraa.vectors.delta_view import DeltaView

STEPS = (2, 8, 4)
WEIGHTS = (2.0, 1.0, 1.0)
DELTAS = (-2.0, -4.0, 3.0)


def normalised_step(local: LocalTraining, lr: float = 1.0) -> float:
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
    assert normalised_step(LocalTraining(momentum=0.0)) == pytest.approx(-1.75)


def test_a_common_learning_rate_cancels() -> None:
    assert normalised_step(LocalTraining(momentum=0.0), lr=0.01) == pytest.approx(-1.75)


def test_momentum_fixture() -> None:
    local = LocalTraining(momentum=0.9)
    assert [local.path_length(1.0, steps) for steps in STEPS] == pytest.approx([2.9, 28.7420489, 9.049])
    assert normalised_step(local) == pytest.approx(-3.23377723)


def test_proximal_fixture() -> None:
    local = LocalTraining(momentum=0.0, prox_mu=0.05)
    assert [local.path_length(1.0, steps) for steps in STEPS] == pytest.approx([1.95, 6.73159137, 3.709875])


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.4}], ids=str)
def test_path_equals_that_of_pytorch_with_unit_gradients(options: dict[str, Any]) -> None:
    """There is no closed form, so PyTorch's SGD steps on the gradient -1 + mu * (w - w_0)."""
    momentum, mu, lr = 0.7, 0.3, 0.2
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=lr, momentum=momentum, **options)
    for _ in range(6):
        w.grad = -1.0 + mu * w.detach()
        optimizer.step()
    local = LocalTraining(momentum=momentum, prox_mu=mu, local_optimizer=SGD(**options))
    assert local.path_length(lr, 6) == pytest.approx(w.item())


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


def play(rule: FedNovaRule, updates: list[ClientUpdate], size: int = 1) -> list[float]:
    """Return the model after these updates. Only the last update changes it."""
    model = AsyncModel(np.zeros(size, np.float32), 3, 1)
    bound = rule.bind(model)
    versions = [bound.apply_update(update, model).new_version for update in updates]
    assert versions == [False] * (len(updates) - 1) + [True]
    return model.params.tolist()


def arrival(client: int, delta: list[float], staleness: int = 0) -> ClientUpdate:
    """Return the update of a client of the fixture, which has trained the first coordinates."""
    count, new = STEPS[client], np.array(delta, np.float32)
    return ClientUpdate(
        client,
        0,
        np.arange(len(new)),
        new,
        np.zeros_like(new),
        staleness,
        int(WEIGHTS[client]),
        1.0,
        steps=count,
        path_length=0.1 * count,
    )


def test_a_full_buffer_takes_the_step_of_a_round() -> None:
    updates = [arrival(client, [delta]) for client, delta in enumerate(DELTAS)]
    assert play(FedNovaRule(3), updates) == pytest.approx([-1.75])
    assert play(FedNovaRule(3, server_lr=0.5), updates) == pytest.approx([-0.875])


def test_a_buffer_counts_the_updates_that_trained_each_coordinate() -> None:
    updates = [arrival(client, delta) for client, delta in enumerate(([-2.0, 2.0], [-4.0], [3.0, 1.0]))]
    assert play(FedNovaRule(3), updates, 3) == pytest.approx([-1.75, 2.0, 0.0])


def test_staleness_shrinks_a_delta_and_not_the_mean_length() -> None:
    """The polynomial weight of staleness 3 is 1/2: 4 (1/2 * -2/2 + 1/2 * 1/4 * -4/8 + 1/4 * 3/4) = -1.5."""
    updates = [arrival(0, [-2.0]), arrival(1, [-4.0], staleness=3), arrival(2, [3.0])]
    assert play(FedNovaRule(3), updates) == pytest.approx([-1.5])


def test_one_update_steps_by_its_delta_over_its_steps() -> None:
    assert play(FedNovaRule(1), [arrival(1, [-4.0])]) == pytest.approx([-4.0])
    # 6 / 8 of the delta, and half of it with a weight of 1/2.
    assert play(FedNovaRule(1, reference_steps=6), [arrival(1, [-4.0])]) == pytest.approx([-3.0])
    assert play(FedNovaRule(1, reference_steps=6), [arrival(1, [-4.0], staleness=3)]) == pytest.approx([-1.5])


def test_a_buffer_of_all_clients_is_a_round_with_the_steps_that_clients_finished() -> None:
    """Two epochs over unequal shards: the clients finish different numbers of steps."""
    rounds = Stepped(spec("fednova"))
    buffered = Stepped(spec("fednova-async", buffer_size=3))
    assert len({count_steps(rounds.run, client) for client in range(3)}) > 1
    rounds.round()
    buffered.round()
    assert buffered.server.step == 1
    close(buffered.server.params, rounds.server.params)
    assert np.abs(buffered.server.params - rounds.run.params).max() > 0.01


def test_another_local_optimizer_is_refused_without_rounds() -> None:
    with refuses("local_optimizer"):
        spec("fednova-async", local_optimizer="adam")


@pytest.mark.parametrize("method", ["fednova", "fednova-async"])
def test_momentum_that_continues_from_the_last_task_is_refused(method: str) -> None:
    assert spec(method, momentum=0.9).method.local.momentum == 0.9
    with refuses("local_optimizer_state", got="keep"):
        spec(method, momentum=0.9, local_optimizer_state="keep")
