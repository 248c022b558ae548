"""Whole runs on random and shuffled submodels against the paper's Algorithms 1 and 2, with autograd in float64.

A client steps along w <- w - lr * m * grad f(m * w). Its mask m has whole units or single weights. The server takes the
mean of all w. Only the random draws come from the package.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy_mlp import Array, forward
from tiny import Stepped, close
from torch.nn.functional import cross_entropy

import fedraa as fl
from benchmarks.studies.generalisation import ACCURACY_GAP, LOSS_GAP
from fedraa.engine.build import build_run
from fedraa.rng import generator

CLIENTS, COHORT, ROUNDS, LR, BATCH = 10, 4, 8, 0.1, 32
FEATURES, UNITS, CLASSES = 64, 12, 10
SHAPES = ((UNITS, FEATURES), (UNITS,), (CLASSES, UNITS), (CLASSES,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]
MIXED = (1.0, 0.5, 0.25)


def experiment(method: str, **fields: Any) -> fl.Experiment:
    common = {"dataset": "digits", "hidden": (UNITS,), "clients": CLIENTS, "participation": f"sample:{COHORT}"}
    training = {"rounds": ROUNDS, "lr": LR, "momentum": 0.0, "local_epochs": 1, "batch_size": BATCH, "engine": "local"}
    return fl.Experiment(method=method, **common | training | {"partition": "labels(per_client=2)"} | fields)


def mask_units(kept: np.ndarray) -> np.ndarray:
    """Return the mask [d] of all weights and biases of these hidden units. It has the output bias."""
    chosen = np.zeros(UNITS, bool)
    chosen[kept] = True
    parts = (np.repeat(chosen, FEATURES), chosen, np.tile(chosen, CLASSES), np.ones(CLASSES, bool))
    return np.concatenate(parts)


def make_mask(policy: str, share: float, round: int, client: int, block: int) -> np.ndarray:
    """Return a client's mask [d] in a round. `block` is the number of the block in the log."""
    blocks = round_up(1 / share)
    rng = generator(0, "bernoulli", round, client)
    if policy == "prefix":
        return mask_units(np.arange(round_up(share * UNITS)))
    if policy == "bernoulli-kernels":
        return mask_units(rng.permutation(UNITS)[: round_up(share * UNITS)])
    if policy == "bernoulli":
        return rng.random(sum(SIZES)) < share
    if policy == "shuffled-kernels":
        return mask_units(np.arange(UNITS) // (UNITS // blocks) == block)
    if blocks == 1:
        return np.ones(sum(SIZES), bool)
    block_of = generator(0, "blocks", blocks).permutation(sum(SIZES)) * blocks // sum(SIZES)
    return np.asarray(block_of == block)


def round_up(value: float) -> int:
    return int(np.ceil(value))


def train_masked(theta: Array, mask: np.ndarray, batches: Iterator[tuple[np.ndarray, np.ndarray]]) -> Array:
    w, m = torch.tensor(theta), torch.tensor(mask, dtype=torch.float64)
    for x, y in batches:
        w.requires_grad_()
        parts = [part.reshape(shape) for part, shape in zip((m * w).split(SIZES), SHAPES, strict=True)]
        hidden = (torch.tensor(x, dtype=torch.float64).flatten(1) @ parts[0].T + parts[1]).relu()
        logits = hidden @ parts[2].T + parts[3]
        (gradient,) = torch.autograd.grad(cross_entropy(logits, torch.tensor(y)), w)
        w = (w - LR * m * gradient).detach()
    return w.numpy()


def minibatches(x: np.ndarray, y: np.ndarray, client: int, turn: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = generator(0, "batches", client, turn).permutation(len(y))
    for first in range(0, len(y), BATCH):
        rows = order[first : first + BATCH]
        yield x[rows], y[rows]


@pytest.mark.parametrize("capacities", [(0.25,), MIXED], ids=["quarter", "mixed"])
@pytest.mark.parametrize("policy", ["prefix", "bernoulli", "bernoulli-kernels", "shuffled", "shuffled-kernels"])
def test_run_of_sampled_clients_follows_the_paper(policy: str, capacities: tuple[float, ...], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"capacities": capacities, "out": tmp_path / "run"}
    given = experiment(policy, **fields)
    if policy == "prefix":
        given = experiment("bernoulli-kernels", submodel="prefix", **fields)
    history, spec = fl.run(given, quiet=True), build_run(given)
    theta, turns = spec.params.astype(np.float64), [0] * CLIENTS
    orders: dict[float, list[int]] = {share: [] for share in capacities}
    for turn in range(ROUNDS):
        models = []
        for line in history.lines():
            if line["kind"] != "dispatch" or line["step"] != turn:
                continue
            client, block = line["client"], line["fragment"]
            share = capacities[client % len(capacities)]
            # The cycles follow the rounds of the run, not the tasks of a client.
            if len(orders[share]) <= turn:
                orders[share] += [-1] * (turn - len(orders[share])) + [block]
            assert orders[share][turn] == block
            batches = minibatches(*spec.data.client(client), client, turns[client])
            models.append(train_masked(theta, make_mask(policy, share, turn, client, block), batches))
            turns[client] += 1
        assert len(models) == COHORT
        theta = np.mean(models, axis=0)
    state = torch.load(history.directory / "model.pt", weights_only=True)
    np.testing.assert_allclose(np.concatenate([value.numpy().ravel() for value in state.values()]), theta, atol=1e-6)
    if policy.startswith("shuffled") and capacities == (0.25,):
        assert [sorted(orders[0.25][first : first + 4]) for first in (0, 4)] == [[0, 1, 2, 3]] * 2

    losses, correct = [], []
    data = spec.data.dataset
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        logits = forward(theta, x.reshape(len(x), -1), (FEATURES, UNITS, CLASSES))[-1]
        losses.append(float(cross_entropy(torch.tensor(logits), torch.tensor(y))))
        correct.append(np.mean(logits.argmax(axis=1) == y))
    assert LOSS_GAP.of(history) == pytest.approx(losses[1] - losses[0], abs=1e-6)
    assert ACCURACY_GAP.of(history) == pytest.approx(100 * (correct[0] - correct[1]))


@pytest.mark.filterwarnings("ignore:dataset 'hand'")
def test_step_of_one_client_on_one_unit_equals_the_computation_by_hand() -> None:
    """Both samples are x = (1, 2) with label 0. w1 = w2 = I, and the biases are 0. The client trains one of two units.

    Unit 0: h = 1, logits (1, 0), p - y = (-q, q) with q = 1 / (1 + e), dh = -q.
    Unit 1: h = 2, logits (0, 2), p - y = (-r, r) with r = 1 / (1 + e^-2), dh = r.
    """
    x, y = np.array([[1, 2]] * 2, np.float32), np.array([0, 0])
    q, r = LR / (1 + np.e), LR / (1 + np.exp(-2))
    moved = {
        0: [1 + q, 2 * q, 0, 1, q, 0, 1 + q, 0, -q, 1, q, -q],
        1: [1, 0, -r, 1 - 2 * r, 0, -r, 1, 2 * r, 0, 1 - 2 * r, r, -r],
    }
    fields: dict[str, Any] = {"hidden": (2,), "clients": 1, "participation": "all", "partition": "iid"}
    trained = set()
    for seed in range(4):
        given = experiment("shuffled-kernels", capacities=(0.5,), standardise=False, seed=seed, **fields)
        run = build_run(given, dataset=fl.Dataset("hand", x, y, x, y, 2))
        run.params[:] = [1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
        stepped = Stepped(run)
        [task] = stepped.round()
        close(stepped.server.params, np.array(moved[task.fragment]))
        trained.add(task.fragment)
    assert trained == {0, 1}
