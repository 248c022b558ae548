"""Generalized AsyncSGD: its step, its queues against the product form of closed networks, and whole runs."""

from pathlib import Path

import numpy as np
import pytest
from played_rules import START, TRIPLE
from refusals import refuses

import fedraa as fl
from fedraa.ledger.participation import PARTICIPATION
from fedraa.ledger.routed_tasks import RoutedTasks
from fedraa.methods.generalized_asyncsgd import RoutedSGD
from fedraa.replay.replay import replay
from fedraa.selection.routing import Routing, analyze_queues
from fedraa.server.async_rule import AsyncModel, ClientUpdate

SMALL = {
    "method": "generalized-asyncsgd",
    "dataset": "digits",
    "clients": 6,
    "hidden": (8,),
    "local_steps": 1,
    "compute": "lognormal:1",
    "engine": "local",
    "quiet": True,
}


def product_form(probabilities: np.ndarray, rates: np.ndarray, tasks: int) -> tuple[float, np.ndarray]:
    """Return throughput and staleness by the normalisation constants Z of the closed network (Buzen 1973)."""

    def constants(loads: np.ndarray) -> np.ndarray:
        z = np.array([1.0, *np.zeros(tasks)])
        for load in loads:
            for k in range(1, tasks + 1):
                z[k] += load * z[k - 1]
        return z

    loads = probabilities / rates
    z = constants(loads)
    queues = [sum(load**k * z[tasks - 1 - k] for k in range(1, tasks)) / z[tasks - 1] for load in loads]
    return z[tasks - 1] / z[tasks], np.array(queues) / probabilities


@pytest.mark.parametrize(
    ("probabilities", "tasks", "throughput", "staleness"),
    [((0.5, 0.5), 2, 0.476190, (0.4, 1.6)), ((0.8, 0.2), 3, 0.9375, (1.25, 5))],
)
def test_throughput_and_staleness_of_queues_equal_the_reference(
    probabilities: tuple[float, float], tasks: int, throughput: float, staleness: tuple[float, float]
) -> None:
    p, rates = np.array(probabilities), np.array([1, 0.25])
    for analyze in (analyze_queues, product_form):
        updates, delays = analyze(p, rates, tasks)
        assert updates == pytest.approx(throughput, abs=1e-6)
        np.testing.assert_allclose(delays, staleness, atol=1e-6)


@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_mean_staleness_over_all_updates_is_the_number_of_other_tasks(tasks: int) -> None:
    rng = np.random.default_rng(tasks)
    p, rates = rng.dirichlet(np.ones(5)), rng.uniform(0.1, 3, 5)
    updates, staleness = analyze_queues(p, rates, tasks)
    assert p @ staleness == pytest.approx(tasks - 1)
    expected = product_form(p, rates, tasks)
    assert updates == pytest.approx(expected[0])
    np.testing.assert_allclose(staleness, expected[1], atol=1e-9)


def step_all(probabilities: tuple[float, float] | None) -> list[list[float]]:
    model = AsyncModel(
        np.array(START, np.float32), 2, 1, probabilities=None if probabilities is None else np.array(probabilities)
    )
    rule = RoutedSGD().bind(model)
    thetas = []
    for client, gain, staleness in TRIPLE:
        new = np.array(gain, np.float32)
        rule.apply_update(ClientUpdate(client, 0, slice(None), new, np.zeros(2, np.float32), staleness, 1, 0.0), model)
        thetas.append(model.params.tolist())
    return thetas


def test_a_step_is_divided_by_n_times_the_probability_of_its_client() -> None:
    np.testing.assert_allclose(step_all((0.8, 0.2)), [(1.625, 2), (1.9375, 2.3125), (1.9375, -2.6875)], atol=1e-6)


def test_a_step_with_equal_or_unknown_probabilities_is_the_delta() -> None:
    assert step_all((0.5, 0.5)) == step_all(None) == [[2, 2], [2.5, 2.5], [2.5, 0.5]]


def test_probabilities_are_the_speeds_up_to_the_smallest_share() -> None:
    durations = np.array([1.0, 2, 4])
    np.testing.assert_allclose(Routing(min_share=0.4).find_probabilities(durations, 3), np.array([4, 2, 1]) / 7)
    limited = Routing(min_share=0.6).find_probabilities(durations, 3)
    assert limited.min() == pytest.approx(0.2)
    # Powers of the speeds 4, 2 and 1 are a geometric sequence.
    assert limited[1] ** 2 == pytest.approx(limited[0] * limited[2])
    np.testing.assert_allclose(Routing(min_share=1.0).find_probabilities(durations, 3), np.full(3, 1 / 3), rtol=1e-6)
    np.testing.assert_allclose(Routing().find_probabilities(np.full(4, 7.0), 4), np.full(4, 0.25))


def test_equal_probabilities_are_possible_for_any_number_of_clients() -> None:
    """In floating point, 1 / 49 * 49 is smaller than 1."""
    speeds = np.linspace(1, 3, 49)
    np.testing.assert_array_equal(Routing(min_share=1.0).find_probabilities(speeds, 5), np.full(49, 1 / 49))


def test_probabilities_keep_the_largest_mean_staleness() -> None:
    durations = np.array([1.0, 2, 8])
    free = Routing(min_share=0.01).find_probabilities(durations, 3)
    limit = 0.9 * float(analyze_queues(free, 1 / durations, 3)[1].max())
    limited = Routing(min_share=0.01, max_staleness=limit).find_probabilities(durations, 3)
    assert free[2] < limited[2] < 1 / 3
    assert analyze_queues(limited, 1 / durations, 3)[1].max() == pytest.approx(limit, rel=1e-6)
    with refuses("next_client.max_staleness", got=0.5):
        Routing(max_staleness=0.5).find_probabilities(durations, 3)


def test_each_client_has_its_share_of_the_updates_at_any_speed() -> None:
    """Clients take 1, 2 and 9 units of time. Each queue serves one task at a time."""
    probabilities, durations = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2, 9])
    queues = RoutedTasks(probabilities, 3, seed=0)
    ends = {client: float(durations[client]) for client in queues.first_clients()}
    assert sorted(ends) == [0, 1, 2]
    counts = np.zeros(3)
    for task in range(4000):
        client = min(ends, key=ends.__getitem__)
        now = ends.pop(client)
        counts[client] += 1
        for started in queues.next_clients(client, task, ()):
            assert started not in ends
            ends[started] = now + float(durations[started])
        assert queues._queues.sum() == 3
        assert set(ends) == set(np.flatnonzero(queues._queues))
    np.testing.assert_allclose(counts / 4000, probabilities, atol=0.025)


def test_tasks_of_a_quarantined_client_go_to_other_clients() -> None:
    queues = RoutedTasks(np.full(4, 0.25), 4, seed=1)
    queues.first_clients()
    for task in range(6):
        queues.next_clients(0 if queues._queues[0] else 1, task, ())
    queues._queues[:] = (1, 3, 0, 0)
    started = queues.next_clients(1, 99, {1, 3})
    assert queues._queues[1] == queues._queues[3] == 0
    assert queues._queues.sum() == 4
    assert set(started) <= {2}
    assert queues.next_clients(0, 100, {0, 1, 2, 3}) == ()


def test_participation_routing_resolves_to_routing() -> None:
    assert isinstance(PARTICIPATION.resolve("routing:5"), Routing)


def test_run_draws_clients_by_the_probabilities_and_replays(tmp_path: Path) -> None:
    history = fl.run(**SMALL, updates=400, concurrency=4, eval_every=400, out=tmp_path / "run")
    commits = [line for line in history.lines() if line["kind"] == "commit"]
    clients = np.array([line["client"] for line in commits])
    weights = np.array([line["weight"] for line in commits])
    shares = np.bincount(clients, minlength=6) / len(clients)
    probabilities = [1 / (6 * weights[clients == client][0]) for client in range(6)]
    assert sum(probabilities) == pytest.approx(1)
    np.testing.assert_allclose(shares, probabilities, atol=0.06)
    assert max(probabilities) > 0.2 > 1 / 6 > min(probabilities)
    assert "consistent" in replay(tmp_path / "run")


def test_another_selection_gives_every_client_the_same_step(tmp_path: Path) -> None:
    history = fl.run(**SMALL, updates=20, concurrency=2, next_client="uniform", out=tmp_path / "run")
    assert {line["weight"] for line in history.lines() if line["kind"] == "commit"} == {1.0}
