"""Errors that no run would show: wrong divisors, chunks and means, by hand on 44 parameters."""

import numpy as np
import pytest
import torch
from refusals import refuses
from tiny import CLIENTS, LR, SEED, Stepped, close, spec, start, steps
from torch import nn

from fedraa.client import trainer
from fedraa.client.split import check_split, measure_split
from fedraa.rng import generator


def test_the_full_batch_gradient_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """MimeLite's gradient is right if the chunks do not divide a shard: a chunk counts by its rows."""
    gradients = []
    for rows in (1024, 7):
        monkeypatch.setattr(trainer, "FULL_BATCH", rows)
        stepped = Stepped(spec("mimelite"))
        tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
        gradients.append(np.array([stepped.train(task).extras["gradient"] for task in tasks]))
        assert any(stepped.run.data.sizes % 7)
    close(gradients[0], gradients[1])


def test_the_training_loss_is_the_mean_over_the_steps() -> None:
    """With a tiny learning rate the loss is the mean of the minibatches' losses at the sent model."""
    stepped = Stepped(spec("fedavg", lr=1e-12, partition="iid", local_epochs=3))
    task = stepped.server.assign(next(iter(stepped.server.begin())), 0.0)
    x, y = stepped.run.data.client(task.client)
    theta = start(stepped.run)
    w1, b1, w2, b2 = theta[:15].reshape(5, 3), theta[15:20], theta[20:40].reshape(4, 5), theta[40:]
    logits = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    rng, means = generator(SEED, "batches", task.client, 0), []
    for _ in range(3):
        order = rng.permutation(len(y))
        means += [losses[order[at : at + 6]].mean() for at in range(0, len(y), 6)]
    assert stepped.train(task).loss == pytest.approx(np.mean(means), rel=1e-5)


def test_halves_of_a_split_model_exchange_float32_if_they_compute_in_bfloat16() -> None:
    halves, whole = (Stepped(spec(method, bf16=True, momentum=0.0)) for method in ("splitfed", "fedavg"))
    task = halves.server.assign(0, 0.0)
    np.testing.assert_array_equal(halves.train(task).params, whole.train(task).params)


def test_frozen_parameters_of_a_split_model_are_neither_sent_nor_trained() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    example = torch.ones(2, 4)
    whole = measure_split(model, 1, example).cost
    model[0].weight.requires_grad_(False)
    cost = measure_split(model, 1, example).cost
    assert (whole.params, whole.bytes) == (20, 80)
    assert (cost.params, cost.bytes) == (4, 16)
    # Frozen weights need no memory for a gradient and no second copy.
    assert whole.memory - cost.memory == 4 * 2 * 16
    model[0].bias.requires_grad_(False)
    with refuses("split"):
        measure_split(model, 1, example)


def test_halves_of_a_split_model_that_share_a_parameter_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert len(check_split(model, 2)) == 3
    model[2].weight = model[0].weight
    with refuses("split"):
        check_split(model, 2)


def test_server_momentum_divides_by_the_mean_steps_of_the_cohort() -> None:
    """FedCM: Delta = -mean delta / (lr T). T is the mean over the clients of the round, not over all clients."""
    stepped = Stepped(spec("fedcm", participation="sample:2"))
    before = stepped.server.params.copy()
    tasks = stepped.round()
    mean = np.mean([steps(stepped.run, task.client) for task in tasks])
    everyone = np.mean([steps(stepped.run, client) for client in range(CLIENTS)])
    assert mean != everyone
    momentum = stepped.server._followers[0]._momentum  # type: ignore[attr-defined]
    close(momentum, -(stepped.server.params - before) / (LR * mean))


def test_cost_of_a_split_model_counts_flops_of_client_and_server() -> None:
    """A sample costs 4 * 3 FLOPs per hidden unit at the client (3 features) and 6 * 4 at the server (4 classes).

    The server computes four times as fast as the fastest device, which has twice the speed of the slowest.
    """
    flags = {"compute": "1:0.5,2:0.5", "partition": "iid", "local_epochs": 5}
    stepped = Stepped(spec("splitfed", override={"submodel.server_compute": 4.0}, **flags))
    stepped.round()
    speeds = stepped.run.fleet.compute
    for line in stepped.records.of("dispatch"):
        here, there = 12 / 36 / speeds[int(line["client"])], 24 / 36 / (4 * 2)
        # The task has five epochs on an average shard, and the bandwidth is unlimited.
        assert line["cost"] == pytest.approx(here + there)


def test_lr_schedule_counts_passes_or_virtual_time() -> None:
    """A round has two epochs of all samples, so the run has made two passes after one round."""
    stepped = Stepped(spec("fedavg", lr_schedule="exponential:0.5@passes"))
    assert [task.lr for task in stepped.round()] == [LR] * CLIENTS
    assert [task.lr for task in stepped.round()] == pytest.approx([LR / 4] * CLIENTS)
    timed = Stepped(spec("fedasync", lr_schedule="exponential:0.5@time"))
    assert timed.server.assign(0, 3.0).lr == pytest.approx(LR / 8)


def test_automatic_capacities_follow_the_speeds_of_devices() -> None:
    """With the speeds 1, 1 and 4, slow clients get a quarter and the fast client gets the whole model.

    OAP trains only multiples of a quarter.
    """
    flags = {"compute": "1:0.7,4:0.3", "capacities": "auto"}
    for method, shares in {
        "heterofl": (0.25, 0.25, 1.0),
        "fedrolex": (0.25, 0.25, 1.0),
        "oap": (0.25, 0.25, 1.0),
    }.items():
        run = spec(method, **flags)
        levels = run.method.submodel.capacities  # type: ignore[attr-defined]
        wanted = dict(zip(sorted(run.fleet.compute), shares, strict=True))
        assert levels.levels == tuple(wanted[speed] for speed in run.fleet.compute)
        assert not levels.redraw
    slow = spec("oap", compute="1:0.7,100:0.3", capacities="auto").method.submodel.capacities
    # This is the smallest level.
    assert min(slow.levels) == 0.25
    with pytest.raises(ValueError, match=r"^submodel.capacities.redraw: .*auto"):
        spec("fedrolex", capacities="auto", override={"submodel.capacities.redraw": True})
    with refuses("capacities", "fedavg", "auto"):
        spec("fedavg", capacities="auto")


def test_a_fragment_is_updated_once_a_round() -> None:
    """Sync Fed-RAA: four clients train two fragments. After each round both fragments have one more update, not two."""
    stepped = Stepped(spec("fed-raa-sync", clients=4, ratios=(0.25, 0.75)))
    for turn in range(3):
        stepped.records.lines.clear()
        stepped.round()
        first = stepped.records.of("dispatch")[0]
        assert first["fragment_updates"] == [turn, turn]


def test_clients_train_from_the_compressed_download() -> None:
    """RA-Fed's C(theta): clients start from the compressed model, and their deltas are averaged.

    The compressed model has 1 byte per number, and 8 more bytes.
    """
    plain, stepped = (
        Stepped(spec("ra-fed", override={"schedule.download_compressor": how})) for how in ("none", "8bit")
    )
    theta = stepped.server.params.copy()
    step = (theta.max() - theta.min()) / 255
    rounded = theta.min() + np.round((theta - theta.min()) / step) * step
    tasks = stepped.round()
    for task in tasks:
        np.testing.assert_allclose(task.params, rounded, atol=1e-6)
    assert {line["bytes_down"] for line in stepped.records.of("dispatch")} == {len(theta) + 8}
    deltas = [stepped.train(task).params - task.params for task in tasks]
    # All clients train all regions in round 0.
    close(stepped.server.params, theta + np.mean(deltas, axis=0))
    plain.round()
    assert not np.array_equal(plain.server.params, stepped.server.params)
    with refuses("schedule.download_compressor", "fed-raa", got="8bit"):
        spec("fed-raa", override={"schedule.download_compressor": "8bit"})


@pytest.mark.parametrize("method", ["scaffold", "mimelite", "feddyn", "padamfed"])
def test_robust_aggregator_is_refused_if_the_server_also_sums_what_clients_send(method: str) -> None:
    with refuses("aggregator", got="median"):
        spec(method, aggregator="median", rounds=3)
