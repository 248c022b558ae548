"""The model after failed tasks of a client, against NumPy on 44 parameters."""

from collections.abc import Iterable

import numpy as np
from numpy_mlp import sgd
from tiny import CLIENTS, LR, WIDTHS, Stepped, close, minibatches, spec, start, steps

BAD = 1


def run_round(stepped: Stepped, waiting: Iterable[int], *, bad: bool) -> list[int]:
    """Run a round and return the clients that wait for the next round. With `bad`, the bad client's task fails."""
    for task in [stepped.server.assign(client, 0.0) for client in waiting]:
        if bad and task.client == BAD:
            after = stepped.server.drop(task.id, "told so", 1.0)
        else:
            after = stepped.server.commit(stepped.train(task), 1.0)
    return list(after)


def test_fedavg_averages_only_the_clients_that_reported() -> None:
    """theta <- sum of n_i w_i / sum of n_i over the clients without a failure.

    After two successive failures client 2 is no longer drawn.
    """
    run = spec("fedavg", momentum=0.0)
    stepped, theta, waiting = Stepped(run), start(run), [*range(CLIENTS)]
    good = [client for client in waiting if client != BAD]
    for turn in range(3):
        assert waiting == (good if turn == 2 else [*range(CLIENTS)])
        waiting = run_round(stepped, waiting, bad=True)
        new = [sgd(theta, minibatches(run, n, turn), WIDTHS, lr=LR) for n in good]
        theta = np.average(new, axis=0, weights=run.data.sizes[good])
        close(stepped.server.params, theta)
    assert [line["action"] for line in stepped.records.of("drop")] == ["retry", "quarantined"]
    assert [line["clients"] for line in stepped.records.of("round")] == [CLIENTS - 1] * 3


def test_scaffold_keeps_the_control_variate_of_a_failed_client() -> None:
    """c_i of a client whose task failed stays, and c moves by the others' changes, divided by N.

    Only round 1 has a failure.
    """
    run = spec("scaffold")
    stepped, theta, waiting = Stepped(run), start(run), [*range(CLIENTS)]
    c, own = np.zeros(len(theta)), np.zeros((CLIENTS, len(theta)))
    for turn in range(3):
        waiting = run_round(stepped, waiting, bad=turn == 1)
        deltas, changes = [], []
        for n in (n for n in range(CLIENTS) if turn != 1 or n != BAD):
            correction = c - own[n]
            y = sgd(theta, minibatches(run, n, turn), WIDTHS, lr=LR, transform=lambda g, d=correction: g + d)
            change = -c + (theta - y) / (steps(run, n) * LR)
            deltas.append(y - theta)
            changes.append(change)
            own[n] += change
        theta = theta + np.mean(deltas, axis=0)
        c = c + np.sum(changes, axis=0) / CLIENTS
        close(stepped.server.params, theta)
    assert waiting == [*range(CLIENTS)]


def test_failed_tasks_change_neither_model_nor_version_of_fedasync() -> None:
    """theta_j <- (1 - a) theta_j + a w only for clients without a failure. Staleness counts applied updates."""
    run = spec("fedasync", mixing=0.7, staleness="polynomial", prox_mu=0.4, momentum=0.0)
    stepped, theta = Stepped(run), start(run)
    sent = {client: (stepped.server.assign(client, 0.0), theta, 0) for client in range(CLIENTS)}
    turns, version = [0] * CLIENTS, 0
    for client in (2, BAD, 0, BAD, 2, 0):
        task, received, base = sent[client]
        if client == BAD:
            waiting = list(stepped.server.drop(task.id, "told so", 1.0))
            assert waiting == ([BAD] if turns[BAD] == 0 else [])
        else:
            waiting = list(stepped.server.commit(stepped.train(task), 1.0))
            w = sgd(received, minibatches(run, client, turns[client]), WIDTHS, lr=LR, prox_mu=0.4)
            a = 0.7 / np.sqrt(version - base + 1)
            theta, version = (1 - a) * theta + a * w, version + 1
        close(stepped.server.params, theta)
        assert stepped.server.step == version
        turns[client] += 1
        if waiting:
            sent[client] = (stepped.server.assign(client, 1.0), theta, version)
    assert [line["staleness"] for line in stepped.records.of("commit")] == [0, 1, 1, 1]
