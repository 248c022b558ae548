"""FedDyn against steps by hand: f_i(x) = 0.5 (x - t_i)^2, alpha 0.1, two local steps."""

from typing import Any

import numpy as np
import pytest
from quadratic import Pair, close, kept, quadratic, train_round
from refusals import refuses
from tiny import Stepped, spec

from fedraa.messages import Vector
from fedraa.methods.feddyn import DriftSum, FedDynRule
from fedraa.server.async_rule import AsyncModel, ClientUpdate

TARGETS, ALPHA = (1.0, -3.0), 0.1


class AllThenClientZero:
    """A participation of all clients in the first round, and then only of client 0."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> range:
        return range(clients if round == 0 else 1)


def drift(stepped: Stepped) -> Vector:
    auxiliary: Any = stepped.server._auxiliary  # type: ignore[attr-defined]
    assert isinstance(auxiliary, DriftSum)
    return ALPHA * auxiliary._drift


def test_rounds_follow_the_formula() -> None:
    stepped = quadratic("feddyn", TARGETS, local_steps=2, participation=AllThenClientZero())
    close(train_round(stepped), [[0.189], [-0.567]])
    close(kept(stepped, "drift"), [[-0.0189], [0.0567]])
    close(drift(stepped), [0.0189])
    close(stepped.server.params, [-0.378])
    close(train_round(stepped), [[-0.1211301]])
    close(kept(stepped, "drift")[0], [-0.04458699])
    close(drift(stepped), [0.006056505])
    close(stepped.server.params, [-0.18169515])


def test_rounds_converge_to_the_minimum() -> None:
    stepped = quadratic("feddyn", TARGETS, local_steps=20, prox_mu=1.0)
    for _ in range(60):
        train_round(stepped)
    close(stepped.server.params, [-1.0])
    np.testing.assert_allclose(kept(stepped, "drift"), [[-2.0], [2.0]], atol=1e-4)


def test_personal_layers_have_no_linear_term() -> None:
    """f_i(s, p) = 0.5 (s + p - t_i)^2: s follows FedDyn, and p only has the proximal term to its received value."""
    stepped = quadratic("feddyn", TARGETS, model=Pair(), local_steps=2, prox_mu=1.0, personal_layers=("head",))
    body, heads, drifts, h = 0.0, [0.0, 0.0], [0.0, 0.0], 0.0
    for _ in range(3):
        deltas = []
        for client, target in enumerate(TARGETS):
            s, p = body, heads[client]
            for _ in range(2):
                error = s + p - target
                s, p = s - 0.1 * (error - drifts[client] + s - body), p - 0.1 * (error + p - heads[client])
            heads[client] = p
            drifts[client] -= s - body
            deltas.append(s - body)
        h -= sum(deltas) / 2
        body += sum(deltas) / 2 - h
        train_round(stepped)
        close(stepped.server.params, [body, 0])
        close(kept(stepped, "personal_layers"), np.array(heads)[:, None])
        close(kept(stepped, "drift"), [[drift, 0] for drift in drifts])


@pytest.mark.parametrize("compress", ["topk:0.5", "randomk:0.5", "qsgd:4", "8bit", "scaled-sign"])
def test_lossy_compression_is_refused(compress: str) -> None:
    with refuses("compress", got=compress):
        spec("feddyn", compress=compress)


def apply_updates(rule: FedDynRule, updates: list[tuple[int, Any, list[float]]], size: int, clients: int = 2) -> Vector:
    """Return the model after these updates: client, coordinates and delta."""
    model = AsyncModel(np.zeros(size, np.float32), clients, 1)
    bound = rule.bind(model)
    for client, where, delta in updates:
        new = np.array(delta, np.float32)
        bound.apply_update(ClientUpdate(client, 0, where, new, np.zeros_like(new), 0, 1, 0.0), model)
    return model.params


def test_buffer_of_all_clients_equals_a_round() -> None:
    everything = slice(None)
    close(apply_updates(FedDynRule(2), [(0, everything, [0.189]), (1, everything, [-0.567])], 1), [-0.378])


def test_buffer_moves_each_coordinate_by_the_updates_that_trained_it() -> None:
    updates = [(0, np.array([0, 1]), [1.0, 2.0]), (1, np.array([0]), [3.0])]
    # H = -(sum / 4): the means are 2 and 2, and the third coordinate was trained by no client.
    close(apply_updates(FedDynRule(2), updates, 3, clients=4), [2 + 1, 2 + 0.5, 0])
    updates += [(2, np.array([0]), [-1.0]), (3, np.array([0, 2]), [1.0, 4.0])]
    # H is now (-1, -.5, -1). The second coordinate stays, although its H is not 0.
    close(apply_updates(FedDynRule(2), updates, 3, clients=4), [3 + 0 + 1, 2.5, 4 + 1])


def test_asynchronous_run_with_fragments_moves_the_model() -> None:
    stepped = Stepped(spec("feddyn-async", buffer_size=2))
    start = stepped.server.params.copy()
    waiting = list(stepped.server.begin())
    for _ in range(4):
        client = waiting.pop(0)
        waiting += stepped.server.commit(stepped.train(stepped.server.assign(client, 0.0)), 1.0)
    assert stepped.server.step == 2
    assert np.abs(stepped.server.params - start).max() > 0.01


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("feddyn", {"prox_mu": 0.0}, "prox_mu"),
        ("feddyn", {"compress": "topk:0.1"}, "compress"),
        ("feddyn", {"server_lr": 0.5}, "server_lr"),
        ("depthfl-feddyn", {"server_lr": 0.5}, "server_lr"),
        ("feddyn", {"server_optimizer": "sgd(server_lr=2)"}, "server_lr"),
        ("feddyn", {"server_optimizer": "momentum"}, "server_optimizer"),
        ("feddyn-async", {"buffer_size": 1}, "buffer_size"),
        ("feddyn-async", {"privacy": "local"}, "privacy"),
        ("feddyn-async", {"privacy": "central"}, "privacy"),
    ],
)
def test_settings_that_break_the_formula_are_refused(method: str, fields: dict[str, Any], field: str) -> None:
    with refuses(field):
        spec(method, **fields)
