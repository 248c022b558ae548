"""Many clients: a start makes few calls per client, and the calls per event do not depend on the number of clients.

Calls are counted, because a time would depend on the machine. The benchmark `million` measures the times.
"""

import json

import numpy as np
import pytest
from calls import count_calls

from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.run_description import describe_run
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update
from fedraa.rundir.packed_columns import unpack_column

MANY = 100_000


def make_spec(clients: int, method: str) -> RunSpec:
    rng = np.random.default_rng(0)
    x, y = rng.random((MANY, 8), np.float32), rng.integers(0, 10, MANY)
    dataset = Dataset("noise", x, y, x[:100], y[:100], 10)
    return build_run(
        Experiment(method=method, clients=clients, hidden=(16,), compute="lognormal:0.5", seed=0), dataset=dataset
    )


@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_a_start_with_a_hundred_thousand_clients_makes_few_calls_per_client(method: str) -> None:
    tasks, written = [], []

    def start() -> None:
        spec = make_spec(MANY, method)
        server = make_server(spec, lambda *_, **__: None)
        clients = iter(server.begin())
        tasks.extend(server.assign(next(clients), 0.0) for _ in range(100))
        written.append(json.dumps(describe_run(spec)))

    # FedAvg makes four calls per client, and Fed-RAA fewer than two.
    assert count_calls(start) < 8 * MANY
    assert [task.client for task in tasks] == list(range(100))
    assert len(unpack_column(json.loads(written[0])["resolved"]["samples"])) == MANY


def calls_of_events(clients: int, learn: bool) -> int:
    """Return the number of calls for 400 assignments and commits."""
    spec = make_spec(clients, "fed-raa")
    server = make_server(spec, lambda *_, **__: None)
    server._learn = learn  # type: ignore[attr-defined]

    def exchange() -> None:
        for event in range(400):
            now = float(event)
            task = server.assign(event % clients, now)
            update = Update(task.id, task.client, task.fragment, task.version, task.params, 1, 0.1, 0.0)
            server.commit(update, now + 1)

    return count_calls(exchange)


@pytest.mark.parametrize("learn", [False, True])
def test_an_event_makes_no_more_calls_with_more_clients(learn: bool) -> None:
    assert calls_of_events(20_000, learn) < 1.1 * calls_of_events(50, learn)


def test_cost_model_learns_from_batches_of_durations_across_a_resume() -> None:
    # There are 640 / 64 batches of ten.
    spec = make_spec(640, "fed-raa")
    costs, shapes = make_cost_model(spec), [spec.submodels[0].widths]
    before, sent = costs.table(shapes), costs.sent(shapes[0])
    for client in range(9):
        assert not costs.observe(shapes[0], client, 3 * costs.cost(shapes[0], client, sent, sent).duration)
    resumed = make_cost_model(spec)
    resumed.restore(json.loads(json.dumps(costs.state())))
    assert resumed.table(shapes).tolist() == before.tolist()
    assert resumed.observe(shapes[0], 9, 3 * costs.cost(shapes[0], 9, sent, sent).duration)
    after = resumed.table(shapes)
    assert after[:10] == pytest.approx(3 * before[:10])
    assert after[10:].tolist() == before[10:].tolist()
