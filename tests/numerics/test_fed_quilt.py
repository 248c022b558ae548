"""Fed-Quilt with added deltas (the async rule `delta`) against its formulas in NumPy, on a model of 42 parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy_mlp import Weights, gradient, train
from torch import nn

from fedraa import Dataset, Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.rng import generator

FEATURES, HIDDEN, CLASSES = 3, 6, 3
LR, BATCH, SEED, STEPS = 0.2, 7, 3, 4


def spec(clients: int, **flags: Any) -> RunSpec:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    common: dict[str, Any] = {"hidden": (HIDDEN,), "lr": LR, "batch_size": BATCH, "seed": SEED, "engine": "local"}
    common |= {"method": "fed-quilt", "clients": clients, "local_steps": f"auto:{STEPS}", "async_rule": "delta"}
    common |= {"clip": 0.0, "override": {"local.logit_calibration": 0.0}}
    model = flags.pop("model", None)
    if model is not None:
        del common["hidden"]
    tiny = Dataset("tiny", x[:70], y[:70], x[70:], y[70:], CLASSES)
    return build_run(Experiment(**common | flags), model, tiny)


def batches(run: RunSpec, client: int, first: int, steps: int) -> list[tuple[Any, Any]]:
    """Return the minibatches first, first + 1, ... of the client's passes. Only their order comes from the package."""
    x, y = run.data.client(client)
    size = -(-len(y) // BATCH)
    found = []
    for number in range(first, first + steps):
        order = generator(SEED, "passes", client, number // size).permutation(len(y))
        rows = order[number % size * BATCH :][:BATCH]
        found.append((x[rows], y[rows]))
    return found


def weights(flat: np.ndarray) -> Weights:
    return Weights.of(flat, FEATURES, HIDDEN, CLASSES)


def discard_event(kind: str, t: float, /, **fields: object) -> None:
    """Discard an event."""


def train_half(theta: Weights, minibatches: list[tuple[Any, Any]], momentum: float) -> Weights:
    """Train half of the network: logits = w2 (2 h) + b2, at half of the rate."""
    velocity = theta.plus(-1, theta)
    for x, y in minibatches:
        twice = gradient(theta._replace(w2=2 * theta.w2), x, y)
        velocity = twice._replace(w2=2 * twice.w2).plus(momentum, velocity)
        theta = theta.plus(-LR / 2, velocity)
    return theta


def test_one_client_with_the_whole_model_equals_sequential_sgd() -> None:
    run = spec(1, fragments=1, polyak_fraction=0, momentum=0.0)
    server, trainer = make_server(run, discard_event), make_worker_spec(run).trainer("cpu")
    for number in range(6):
        task = server.assign(0, float(number))
        server.commit(trainer.train(task, *run.data.client(0)), number + 1.0)
    # A pass has 10 minibatches. The 24 steps of all tasks use the minibatches of three passes in their order.
    theta = train(weights(run.params), batches(run, 0, 0, 6 * STEPS), lr=LR, momentum=0.0)
    np.testing.assert_allclose(server.params, theta.flat(), atol=1e-5)


@pytest.mark.parametrize("bal", [0.0, 0.5, 1.0])
def test_fragment_updates_and_their_polyak_mean_follow_the_formula(bal: float) -> None:
    """Three clients have different numbers of samples. The first client is three times as slow as the others."""
    gain, share = 0.9, 0.3
    flags: dict[str, Any] = {"compute": "1:0.34,3:0.66", "partition": "dirichlet", "dirichlet": 1.0}
    override = {"local.logit_calibration": 0.0, "update.server_gain": gain, "update.participation_correction": bal}
    run = spec(3, fragments=2, override=override, polyak_fraction=share, **flags)
    sizes, speeds = run.data.sizes, run.fleet.compute
    # The duration of a step: the trained share of the model, times the mean minibatch, divided by 5 passes over the
    # mean shard and by the speed.
    part = np.array([widths.widths[0] for widths in run.submodels]) * 7 + 3
    batch = sizes / np.ceil(sizes / BATCH)
    rates = speeds / (part[0] / 45 * batch / (sizes.mean() * 5))
    factors = ((sizes / sizes.sum()) / (rates / rates.sum())) ** bal
    factors /= (rates / rates.sum()) @ factors
    alphas = np.minimum(1, factors * min(1, gain * 2 / 3))
    # With the power 1 two clients reach the maximum.
    assert len(set(alphas.round(6))) == {0.0: 1, 0.5: 3, 1.0: 2}[bal]

    server, trainer = make_server(run, discard_event), make_worker_spec(run).trainer("cpu")
    theta = weights(run.params)
    mean = run.params.astype(np.float64)
    neurons = ([0, 1, 2], [3, 4, 5])
    taken, out, gone = [0, 0, 0], {}, [0, 0]
    for client in server.begin():
        task = server.assign(client, 0.0)
        assert gone[task.fragment] == min(gone)
        gone[task.fragment] += 1
        out[client] = (task, theta.neurons(neurons[task.fragment]))
    for t, client in enumerate((1, 2, 1, 0, 2, 2)):
        task, received = out[client]
        new = train_half(received, batches(run, client, taken[client], STEPS), momentum=0.5)
        taken[client] += STEPS
        server.commit(trainer.train(task, *run.data.client(client)), t + 1.0)
        kept = neurons[task.fragment]
        before, change = theta.neurons(kept), new.plus(-1, received)
        moved = before.plus(alphas[client], change)
        # Three clients train the output bias, which is in both fragments: its weight is gain / 3 instead of gain * 2 /
        # 3.
        theta = theta.put(kept, moved._replace(b2=before.b2 + alphas[client] / 2 * change.b2))
        mean += (theta.flat() - mean) / (share * t + 1)
        np.testing.assert_allclose(server.params, mean, atol=1e-5)
        task = server.assign(client, t + 1.0)
        assert gone[task.fragment] == min(gone)
        gone[task.fragment] += 1
        out[client] = (task, theta.neurons(neurons[task.fragment]))
    assert np.abs(theta.flat() - mean).max() > 1e-3


class Block(nn.Module):
    """A residual block in which only the hidden layer can be cut, because a norm reads all units of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 4))
        self.first = nn.Linear(FEATURES, 4)
        self.hidden = nn.Linear(4, 6)
        self.out = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = self.norm(self.start + self.first(x))
        logits: torch.Tensor = self.head(self.norm(stream + self.out(torch.relu(self.hidden(stream)))))
        return logits


@pytest.mark.parametrize(("full_rate", "uncut"), [(True, 1.2 * 2 / 5), (False, 1.2 / 5)])
def test_uncut_layers_have_the_weight_of_a_fragment_only_at_full_rate(full_rate: bool, uncut: float) -> None:
    """N = 5, M = 2: the weight is gain * M / N, and for other coordinates in all fragments it is gain / N."""
    override = {"local.full_rate": full_rate}
    run = spec(5, model=Block(), fragments=2, polyak_fraction=0, override=override)
    server, trainer = make_server(run, discard_event), make_worker_spec(run).trainer("cpu")
    task = server.assign(0, 0.0)
    update = trainer.train(task, *run.data.client(0))
    server.commit(update, 1.0)
    where = run.submodels[task.fragment].index
    assert where is not None
    moved = (server.params - run.params)[where]
    change = update.params - run.params[where]
    weights = {}
    for name, place in run.traced.places.items():
        own = np.isin(where, np.arange(len(run.params))[place]) & (np.abs(change) > 1e-4)
        weights[name] = np.unique((moved[own].astype(np.float64) / change[own]).round(2)).tolist()
    whole = ("start", "first.weight", "first.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")
    expected = {name: [uncut] for name in whole} | {"out.bias": [0.24]}
    assert weights == expected | {name: [0.48] for name in ("hidden.weight", "hidden.bias", "out.weight")}


@pytest.mark.parametrize("full_rate", [True, False])
def test_units_start_with_the_norm_of_the_full_model_only_at_full_rate(full_rate: bool) -> None:
    """The second hidden layer of 6 units loses the inputs from the other fragment, 3 of 6 in each row."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    run = spec(4, model=model, fragments=2, override={"local.full_rate": full_rate})
    weights = {name: run.params[place] for name, place in run.traced.places.items()}
    full = model[2].weight.detach().numpy()
    assert (weights["2.weight"] == 0).sum() == 18
    norms = np.linalg.norm(weights["2.weight"].reshape(6, 6), axis=1)
    assert np.allclose(norms, np.linalg.norm(full, axis=1)) == full_rate
    for name in ("0.weight", "0.bias", "2.bias", "4.weight", "4.bias"):
        np.testing.assert_array_equal(weights[name], model.get_parameter(name).detach().numpy().ravel())
