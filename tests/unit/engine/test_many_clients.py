"""Many clients: the work per run takes seconds for a hundred thousand clients, and the work per event is O(1)."""

import json
import time

import numpy as np
import pytest

from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.run_description import describe_run
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update
from fedraa.rundir.packed_columns import unpack_column

MANY = 100_000


def fleet(clients: int, method: str) -> RunSpec:
    rng = np.random.default_rng(0)
    x, y = rng.random((MANY, 8), np.float32), rng.integers(0, 10, MANY)
    dataset = Dataset("noise", x, y, x[:100], y[:100], 10)
    return build_run(
        Experiment(method=method, clients=clients, hidden=(16,), compute="lognormal:0.5", seed=0), dataset=dataset
    )


@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_a_hundred_thousand_clients_start_in_seconds(method: str) -> None:
    # The first run includes imports and the first calls of torch.
    fleet(10, method)
    started = time.process_time()
    spec = fleet(MANY, method)
    server = make_server(spec, lambda *_, **__: None)
    clients = iter(server.begin())
    tasks = [server.assign(next(clients), 0.0) for _ in range(100)]
    written = json.dumps(describe_run(spec))
    assert time.process_time() - started < 10
    assert [task.client for task in tasks] == list(range(100))
    assert len(unpack_column(json.loads(written)["resolved"]["samples"])) == MANY


def per_event(clients: int, learn: bool) -> float:
    """Return the CPU seconds per assignment and commit, as the minimum over batches."""
    spec = fleet(clients, "fed-raa")
    server = make_server(spec, lambda *_, **__: None)
    server._learn = learn  # type: ignore[attr-defined]
    best = float("inf")
    for batch in range(5):
        started = time.process_time()
        for event in range(400 * batch, 400 * (batch + 1)):
            now = float(event)
            task = server.assign(event % clients, now)
            update = Update(task.id, task.client, task.fragment, task.version, task.params, 1, 0.1, 0.0)
            server.commit(update, now + 1)
        best = min(best, (time.process_time() - started) / 400)
    return best


@pytest.mark.parametrize("learn", [False, True])
def test_an_event_costs_the_same_in_a_fleet_of_any_size(learn: bool) -> None:
    assert per_event(20_000, learn) < 5 * per_event(50, learn)


def test_a_large_fleet_learns_from_several_answers_at_a_time_and_across_a_resumption() -> None:
    # There are 640 / 64 batches of ten.
    spec = fleet(640, "fed-raa")
    costs, shapes = make_cost_model(spec), [spec.submodels[0].widths]
    before, sent = costs.table(shapes), costs.sent(shapes[0])
    for client in range(9):
        assert not costs.observe(shapes[0], client, 3 * costs.cost(shapes[0], client, sent, sent))
    resumed = make_cost_model(spec)
    resumed.restore(json.loads(json.dumps(costs.state())))
    assert resumed.table(shapes).tolist() == before.tolist()
    assert resumed.observe(shapes[0], 9, 3 * costs.cost(shapes[0], 9, sent, sent))
    after = resumed.table(shapes)
    assert after[:10] == pytest.approx(3 * before[:10])
    assert after[10:].tolist() == before[10:].tolist()
