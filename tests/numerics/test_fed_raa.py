"""Fed-RAA and its baselines against the papers' formulas in NumPy, on a model of 42 parameters."""

from typing import Any

import numpy as np
import pytest
from numpy_mlp import Weights, mean, train
from tiny import Records, minibatches

from fedraa import Dataset, Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.run_spec import RunSpec

FEATURES, HIDDEN, CLASSES = 3, 6, 3
LR, BATCH, EPOCHS, SEED = 0.2, 7, 2, 3
# 25 % and 75 % of 6 neurons are 1.5 and 4.5. With equal remainders the first fragment gets the remaining neuron.
NEURONS = ([0, 1], [2, 3, 4, 5])


def spec(method: str, clients: int, **flags: Any) -> RunSpec:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    common: dict[str, Any] = {
        "hidden": (HIDDEN,),
        "lr": LR,
        "batch_size": BATCH,
        "local_epochs": EPOCHS,
        "seed": SEED,
        "engine": "local",
    }
    experiment = Experiment(method=method, clients=clients, **(common | flags))
    return build_run(experiment, dataset=Dataset("tiny", x[:70], y[:70], x[70:], y[70:], CLASSES))


def weights(flat: np.ndarray) -> Weights:
    return Weights.of(flat, FEATURES, HIDDEN, CLASSES)


def constant(k: int) -> float:
    return 1.0


def polynomial(k: int) -> float:
    return 1 / np.sqrt(k + 1)


def hinge(k: int) -> float:
    return 1.0 if k <= 4 else 1 / (10 * (k - 4) + 1)


@pytest.mark.parametrize("s", [constant, polynomial, hinge])
@pytest.mark.parametrize("method", ["fed-raa", "fedasync"])
def test_asynchronous_updates_follow_the_formula(method: str, s: Any) -> None:
    """Fed-RAA Algorithm 1: q(j) += 1, theta_j <- (1 - a) theta_j + a theta_new, a = alpha s(q now - q sent).

    Seven clients start together, so that the updates of one fragment have the staleness 0, 1, 2, and so on. The client
    of the first update then starts again with the current fragment.
    """
    alpha, rho = 0.7, 0.3
    flags: dict[str, Any] = {"scheduler": "minimum-priority", "ratios": (0.25, 0.75)} if method == "fed-raa" else {}
    run = spec(method, 7, mixing=alpha, prox_mu=rho, momentum=0.5, staleness=s.__name__, **flags)
    neurons = NEURONS if method == "fed-raa" else ([*range(HIDDEN)],)
    server, trainer = make_server(run, Records()), make_worker_spec(run).trainer("cpu")
    theta = weights(run.params)
    start = theta

    q = [0] * len(neurons)
    sent = {}
    for client in server.begin():
        task = server.assign(client, 0.0)
        sent[client] = (task, 0, theta.neurons(neurons[task.fragment]), q[task.fragment])
    for client in (4, 2, 4, 0, 1, 3, 5, 6):
        task, turn, received, version = sent[client]
        j = task.fragment
        server.commit(trainer.train(task, *run.data.client(client)), 1.0)
        new = train(received, minibatches(run, client, turn), lr=LR, momentum=0.5, prox_mu=rho)
        a = alpha * s(q[j] - version)
        q[j] += 1
        old = theta.neurons(neurons[j])
        theta = theta.put(neurons[j], mean([old, new], [1 - a, a]))
        np.testing.assert_allclose(server.params, theta.flat(), atol=1e-6)
        task = server.assign(client, 1.0)
        sent[client] = (task, turn + 1, theta.neurons(neurons[task.fragment]), q[task.fragment])

    assert sum(q) == server.step == 8
    assert np.abs(theta.flat() - start.flat()).max() > 0.1
    if method == "fedasync":
        # Staleness is at most 7, so that the hinge has an effect.
        assert q == [8]


def test_untouched_fragment_keeps_its_bits() -> None:
    """One update changes its fragment and the shared output bias. All other coordinates keep their bits."""
    run = spec("fed-raa", 2, ratios=(0.25, 0.75))
    server, trainer = make_server(run, Records()), make_worker_spec(run).trainer("cpu")
    [task, _] = [server.assign(client, 0.0) for client in server.begin()]
    before = server.params.copy()
    server.commit(trainer.train(task, *run.data.client(task.client)), 1.0)
    mine, other = NEURONS[task.fragment], NEURONS[1 - task.fragment]
    moved, was = weights(server.params), weights(before)
    for now, then in zip(moved.neurons(other)[:3], was.neurons(other)[:3], strict=True):
        np.testing.assert_array_equal(now, then)
    for now, then in zip(moved.neurons(mine), was.neurons(mine), strict=True):
        assert (now != then).any()


@pytest.mark.parametrize(
    ("method", "flags", "prox_mu", "momentum"),
    [
        ("fedavg", {}, 0.0, 0.5),
        ("fedavg", {"momentum": 0.0}, 0.0, 0.0),
        ("fedprox", {}, 0.1, 0.5),
        ("fedprox", {"prox_mu": 2.0, "momentum": 0.9}, 2.0, 0.9),
    ],
)
def test_rounds_of_full_models_follow_the_formula(
    method: str, flags: dict[str, Any], prox_mu: float, momentum: float
) -> None:
    """McMahan et al., Algorithm 1: theta <- sum_k n_k / n w_k; FedProx adds mu (w - theta) to the gradient."""
    run = spec(method, 4, partition="dirichlet", dirichlet=1.0, **flags)
    sizes = run.data.sizes
    assert len(set(sizes.tolist())) > 1
    server, trainer = make_server(run, Records()), make_worker_spec(run).trainer("cpu")
    theta = weights(run.params)
    assert list(server.begin()) == [0, 1, 2, 3]
    for turn in range(3):
        tasks = [server.assign(client, float(turn)) for client in range(4)]
        for task in reversed(tasks):
            server.commit(trainer.train(task, *run.data.client(task.client)), turn + 1.0)
        new = [train(theta, minibatches(run, n, turn), lr=LR, momentum=momentum, prox_mu=prox_mu) for n in range(4)]
        theta = mean(new, sizes / sizes.sum())
        np.testing.assert_allclose(server.params, theta.flat(), atol=1e-6)
    assert server.step == 3
    assert np.abs(theta.flat() - run.params).max() > 0.1


def test_rounds_of_fragments_follow_the_formula() -> None:
    """Sync Fed-RAA: theta_j <- (1 - alpha) theta_j + alpha * uniform mean of the returns of fragment j.

    The output bias is in every fragment, so its mean is over all clients. With one client, one fragment stays.
    """
    alpha, rho = 0.4, 0.3
    for clients in (5, 1):
        run = spec("fed-raa-sync", clients, ratios=(0.25, 0.75), server_lr=alpha, prox_mu=rho)
        server, trainer = make_server(run, Records()), make_worker_spec(run).trainer("cpu")
        theta = weights(run.params)
        assert list(server.begin()) == [*range(clients)]
        for turn in range(3):
            tasks = [server.assign(client, float(turn)) for client in range(clients)]
            assert {task.fragment for task in tasks} == ({0, 1} if clients > 1 else {tasks[0].fragment})
            for task in tasks:
                server.commit(trainer.train(task, *run.data.client(task.client)), turn + 1.0)
            new = [
                train(
                    theta.neurons(NEURONS[task.fragment]),
                    minibatches(run, task.client, turn),
                    lr=LR,
                    momentum=0.5,
                    prox_mu=rho,
                )
                for task in tasks
            ]
            bias = np.mean([w.b2 for w in new], axis=0)
            old = theta
            for j, neurons in enumerate(NEURONS):
                mine = [w for w, task in zip(new, tasks, strict=True) if task.fragment == j]
                if mine:
                    average = mean(mine, [1 / len(mine)] * len(mine))
                    theta = theta.put(neurons, mean([old.neurons(neurons), average], [1 - alpha, alpha]))
            theta = theta._replace(b2=(1 - alpha) * old.b2 + alpha * bias)
            np.testing.assert_allclose(server.params, theta.flat(), atol=1e-6)
        assert np.abs(theta.flat() - run.params).max() > 0.02
