"""Every method of full models against its paper's formulas in NumPy, on 44 parameters.

Clients have shards of different sizes, so that wrong weights n_i / n or step counts T_i would change the results.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy_mlp import Array, gradients, layers, loss_gradient, sgd
from tiny import (
    BATCH,
    CLASSES,
    CLIENTS,
    EPOCHS,
    FEATURES,
    HIDDEN,
    LR,
    WIDTHS,
    Stepped,
    close,
    minibatches,
    spec,
    start,
    steps,
)

from fedraa.engine.run_spec import RunSpec


def trained(run: RunSpec, theta: Array, turn: int, **terms: Any) -> list[Array]:
    """Return the trained weights w_i of every client."""
    return [sgd(theta, minibatches(run, n, turn), WIDTHS, lr=LR, **terms) for n in range(CLIENTS)]


def shares(run: RunSpec) -> Array:
    sizes = run.data.sizes
    assert len(set(sizes.tolist())) == CLIENTS
    assert len({steps(run, n) for n in range(CLIENTS)}) > 1
    return np.asarray(sizes / sizes.sum())


@pytest.mark.parametrize(
    ("method", "flags", "terms"),
    [
        ("fedavg", {}, {"momentum": 0.5}),
        ("fedavg", {"momentum": 0.0}, {}),
        ("fedprox", {"prox_mu": 0.7, "momentum": 0.9}, {"prox_mu": 0.7, "momentum": 0.9}),
    ],
)
def test_fedavg_and_fedprox_follow_their_formulas(method: str, flags: dict[str, Any], terms: dict[str, float]) -> None:
    """theta <- sum_i n_i / n w_i; FedProx descends f + (mu / 2) |w - theta|^2."""
    run = spec(method, **flags)
    theta = start(run)

    def expected(turn: int) -> Array:
        nonlocal theta
        theta = np.average(trained(run, theta, turn, **terms), axis=0, weights=shares(run))
        return theta

    Stepped(run).rounds(3, expected)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_fedsam_follows_its_formula(server_lr: float) -> None:
    """FedSAM Algorithm 1: w~ = w + rho g / |g|, w <- w - eta_l grad f(w~); theta += eta_g mean Delta_i."""
    run = spec("fedsam", override={"local.sam_rho": 0.3}, server_lr=server_lr)
    theta = start(run)

    def expected(turn: int) -> Array:
        nonlocal theta
        theta = theta + server_lr * np.mean([w - theta for w in trained(run, theta, turn, sam_rho=0.3)], axis=0)
        return theta

    Stepped(run).rounds(2, expected)


@pytest.mark.parametrize("participation", ["all", "sample:2"])
def test_scaffold_follows_its_formula(participation: str) -> None:
    """Option II: y <- y - eta_l (g - c_i + c); c_i+ = c_i - c + (theta - y) / (T_i eta_l) with the client's T_i;
    theta += mean Delta y; c += (1 / N) times the sum over the cohort of c_i+ - c_i. N is the number of all clients."""
    run = spec("scaffold", participation=participation)
    shares(run)
    stepped, theta = Stepped(run), start(run)
    c, own = np.zeros(len(theta)), np.zeros((CLIENTS, len(theta)))
    turns = [0] * CLIENTS
    for _ in range(3):
        cohort = [task.client for task in stepped.round()]
        deltas, changes = [], []
        for n in cohort:
            correction = c - own[n]
            y = sgd(theta, minibatches(run, n, turns[n]), WIDTHS, lr=LR, transform=lambda g, d=correction: g + d)
            new = own[n] - c + (theta - y) / (steps(run, n) * LR)
            deltas.append(y - theta)
            changes.append(new - own[n])
            own[n] = new
            turns[n] += 1
        theta = theta + np.mean(deltas, axis=0)
        c = c + np.sum(changes, axis=0) / CLIENTS
        close(stepped.server.params, theta)
    assert len(set(turns)) > 1 or participation == "all"
    assert np.abs(c).max() > 0.01


def adam(v: Array, square: Array) -> Array:
    return 0.99 * v + 0.01 * square


def yogi(v: Array, square: Array) -> Array:
    return v - 0.01 * square * np.sign(v - square)


def adagrad(v: Array, square: Array) -> Array:
    return v + square


@pytest.mark.parametrize("rule", [adam, yogi, adagrad])
def test_server_optimizers_follow_their_formulas(rule: Callable[[Array, Array], Array]) -> None:
    """Reddi et al. 2021, Algorithm 2: m <- .9 m + .1 Delta; theta += eta m / (sqrt(v) + tau); v starts at tau^2."""
    run = spec(f"fed{rule.__name__}", momentum=0.0, server_lr=0.05)
    theta, tau = start(run), 1e-3
    m, v = np.zeros(len(theta)), np.full(len(theta), tau**2)

    def expected(turn: int) -> Array:
        nonlocal theta, m, v
        delta = np.mean(trained(run, theta, turn), axis=0) - theta
        m = 0.9 * m + 0.1 * delta
        v = rule(v, delta**2)
        theta = theta + 0.05 * m / (np.sqrt(v) + tau)
        return theta

    Stepped(run).rounds(3, expected)


def test_fedavgm_follows_its_formula() -> None:
    """Hsu et al. 2019: v <- .9 v + sum_i n_i / n Delta_i; theta += eta v."""
    run = spec("fedavgm", momentum=0.0, server_lr=0.5)
    theta = start(run)
    v = np.zeros(len(theta))

    def expected(turn: int) -> Array:
        nonlocal theta, v
        v = 0.9 * v + np.average(trained(run, theta, turn), axis=0, weights=shares(run)) - theta
        theta = theta + 0.5 * v
        return theta

    Stepped(run).rounds(3, expected)


@pytest.mark.parametrize(
    ("method", "flags", "terms"),
    [
        ("fedcm", {}, {}),
        ("fedcm", {"override": {"local.grad_mix": 0.4}}, {}),
        ("mofedsam", {"override": {"local.sam_rho": 0.3}}, {"sam_rho": 0.3}),
    ],
)
def test_client_momentum_follows_its_formula(method: str, flags: dict[str, Any], terms: dict[str, float]) -> None:
    """v = beta g + (1 - beta) Delta, w <- w - eta_l v, theta += mean Delta_i, Delta <- -mean Delta_i / (eta_l T).

    beta is .1 by default. The step of theta is the paper's for eta_g = eta_l T, where T is the mean number of steps in
    the cohort. MoFedSAM uses SAM's g, whose ascent uses only the gradient of the loss.
    """
    run = spec(method, **flags)
    shares(run)
    theta = start(run)
    delta = np.zeros(len(theta))
    beta = flags.get("override", {}).get("local.grad_mix", 0.1)
    mean_steps = np.mean([steps(run, n) for n in range(CLIENTS)])

    def expected(turn: int) -> Array:
        nonlocal theta, delta
        w = trained(run, theta, turn, transform=lambda g, d=delta: beta * g + (1 - beta) * d, **terms)
        delta = np.mean(w, axis=0) - theta
        theta = theta + delta
        delta = -delta / (LR * mean_steps)
        return theta

    Stepped(run).rounds(4, expected)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_mimelite_follows_its_formula(decay: float) -> None:
    """w <- w - eta_l ((1 - beta) g + beta m) with beta = .9; m <- (1 - beta) sum p_i grad f_i(theta) + beta m.

    The gradients in m are over all samples, at the model at the start of the round. Weight decay is part of f.
    """
    run = spec("mimelite", weight_decay=decay)
    p, theta = shares(run), start(run)
    m = np.zeros(len(theta))

    def expected(turn: int) -> Array:
        nonlocal theta, m
        full = [loss_gradient(theta, *run.data.client(n), WIDTHS)[1] + decay * theta for n in range(CLIENTS)]
        w = [
            train_with_decay(theta, minibatches(run, n, turn), decay, lambda g, m=m: 0.1 * g + 0.9 * m)
            for n in range(CLIENTS)
        ]
        theta = np.average(w, axis=0, weights=p)
        m = 0.1 * np.average(full, axis=0, weights=p) + 0.9 * m
        return theta

    Stepped(run).rounds(3, expected)


def train_with_decay(theta: Array, batches: Any, decay: float, transform: Callable[[Array], Array]) -> Array:
    w = theta
    for x, y in batches:
        w = w - LR * transform(loss_gradient(w, x, y, WIDTHS)[1] + decay * w)
    return w


def test_fedrobust_follows_its_formula() -> None:
    """min over w, max over (L_i, d_i) of the batch's summed loss f(w; L x + d) - 100 |L - 1|^2 - 4 |d|^2.

    Before each step of w on a batch, (L, d) take one ascent step with the rates .001 and .025 on the same batch. They
    stay at the client, and w is averaged. L is diagonal.
    """
    run = spec("fedrobust")
    shares(run)
    theta = start(run)
    scale, shift = np.ones((CLIENTS, FEATURES)), np.zeros((CLIENTS, FEATURES))

    def expected(turn: int) -> Array:
        nonlocal theta
        new = []
        for n in range(CLIENTS):
            w = theta
            for x, y in minibatches(run, n, turn):
                # This is the gradient of the sum by the input.
                back = gradients(w, x * scale[n] + shift[n], y, WIDTHS)[2] * len(y)
                scale[n] += 0.001 * ((back * x).sum(axis=0) - 2 * 100 * (scale[n] - 1))
                shift[n] += 0.025 * (back.sum(axis=0) - 2 * 4 * shift[n])
                w = w - LR * gradients(w, x * scale[n] + shift[n], y, WIDTHS)[1]
            new.append(w)
        theta = np.mean(new, axis=0)
        return theta

    Stepped(run).rounds(2, expected)
    assert np.abs(scale - 1).max() > 1e-3
    assert np.abs(shift).max() > 0.01


def test_fedasync_follows_its_formula() -> None:
    """theta <- (1 - a) theta + a w with a = alpha (k + 1)^-.5, after k other updates since the server sent theta.

    The client descends f + (rho / 2) |w - theta_sent|^2.
    """
    run = spec("fedasync", mixing=0.7, staleness="polynomial", prox_mu=0.4, momentum=0.0)
    stepped, theta = Stepped(run), start(run)
    sent = {client: (stepped.server.assign(client, 0.0), theta, 0) for client in range(CLIENTS)}
    turns, stale = [0] * CLIENTS, []
    for t, client in enumerate((2, 0, 2, 1, 1)):
        task, received, version = sent[client]
        stepped.server.commit(stepped.train(task), 1.0)
        w = sgd(received, minibatches(run, client, turns[client]), WIDTHS, lr=LR, prox_mu=0.4)
        stale.append(t - version)
        a = 0.7 / np.sqrt(stale[-1] + 1)
        theta = (1 - a) * theta + a * w
        close(stepped.server.params, theta)
        turns[client] += 1
        sent[client] = (stepped.server.assign(client, 1.0), theta, t + 1)
    assert stale == [0, 1, 1, 3, 0]


def test_fedbuff_follows_its_formula() -> None:
    """After K = 2 updates theta -= eta_g (1 / K) sum s(k) (theta_sent - w), with s(k) = 1 / sqrt(1 + k).

    The staleness k and the version count full buffers. A client continues from the current theta after each update.
    """
    run = spec("fedbuff", buffer_size=2, server_lr=0.8, momentum=0.0)
    stepped, theta = Stepped(run), start(run)
    sent = {client: (stepped.server.assign(client, 0.0), theta, 0) for client in range(CLIENTS)}
    turns, buffer, version, stale = [0] * CLIENTS, [], 0, []
    for client in (2, 0, 2, 1, 1, 0, 0, 2):
        task, received, base = sent[client]
        stepped.server.commit(stepped.train(task), 1.0)
        w = sgd(received, minibatches(run, client, turns[client]), WIDTHS, lr=LR)
        stale.append(version - base)
        buffer.append((received - w) / np.sqrt(1 + stale[-1]))
        if len(buffer) == 2:
            theta = theta - 0.8 / 2 * np.sum(buffer, axis=0)
            buffer, version = [], version + 1
        close(stepped.server.params, theta)
        assert stepped.server.step == version
        turns[client] += 1
        sent[client] = (stepped.server.assign(client, 1.0), theta, version)
    assert stale == [0, 0, 1, 1, 0, 1, 0, 2]
    assert [line["staleness"] for line in stepped.records.of("commit")] == stale


def test_splitfed_follows_its_formula() -> None:
    """Version 1 of SplitFed, with a copy of the server's layers for each client.

    The client sends h, the output of its layers. The server's copy takes a step and sends back d loss / d h, with which
    the client takes its step. Each round averages the layers of the clients and of the server's copies.
    """
    run = spec("splitfed", momentum=0.0)
    cut = HIDDEN * FEATURES + HIDDEN
    theta = start(run)

    def expected(turn: int) -> Array:
        nonlocal theta
        stems, trunks = [], []
        for n in range(CLIENTS):
            stem, trunk = theta[:cut].copy(), theta[cut:].copy()
            for x, y in minibatches(run, n, turn):
                [(w, b)] = layers(stem, (FEATURES, HIDDEN))
                h = x @ w.T + b
                _, g, back = gradients(trunk, np.maximum(h, 0), y, (HIDDEN, CLASSES))
                # The ReLU is the first layer of the server's part.
                back = back * (h > 0)
                trunk = trunk - LR * g
                stem = stem - LR * np.concatenate([(back.T @ x).ravel(), back.sum(axis=0)])
            stems.append(stem)
            trunks.append(trunk)
        theta = np.concatenate([np.mean(stems, axis=0), np.mean(trunks, axis=0)])
        return theta

    stepped = Stepped(run)
    stepped.rounds(2, expected)
    # h and its gradient are sent for every sample of every epoch. The client's part is sent once each way. float32 has
    # 4 bytes.
    for line in stepped.records.of("dispatch") + stepped.records.of("commit"):
        traffic = line.get("bytes_down", line.get("bytes_up"))
        assert traffic == 4 * cut + 4 * HIDDEN * EPOCHS * run.data.sizes[line["client"]]
    channel = stepped.trainer._model(()).module.channel
    assert channel.up == channel.down == 2 * 4 * HIDDEN * EPOCHS * run.data.sizes.sum()
    assert run.data.sizes.max() > BATCH
