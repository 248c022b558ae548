"""The choice of fragments: the delay bound, the feasible sets, fairness, and the results for a whole run."""

import heapq
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from refusals import refuses

from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.preflight import check_runnable
from schedulers import (
    SCHEDULERS,
    FragmentStats,
    GreRAA,
    Scheduler,
    SchedulerRunner,
    WrongChoice,
    baselines,
    delay_bound,
)
from schedulers.baselines import MinimumPriority, Offline, Random
from schedulers.bound import offline_sets
from schedulers.protocol import SchedulingContext

RATIOS = {2: (0.4, 0.6), 3: (0.2, 0.3, 0.5), 4: (0.1, 0.2, 0.3, 0.4), 5: (0.05, 0.1, 0.2, 0.3, 0.35)}
INF = np.inf


def costs(fragments: int, slow: int = 5, clients: int = 10) -> npt.NDArray[np.float64]:
    """Return c[n, j] = share of fragment j over compute speed, 1 for the first `slow` clients and 3 for the others."""
    compute = np.where(np.arange(clients) < slow, 1.0, 3.0)
    return np.array(RATIOS[fragments])[None, :] / compute[:, None]


def choose(
    planner: SchedulerRunner, client: int, turn: int, counts: npt.NDArray[np.int64], rng: np.random.Generator
) -> int:
    standing = FragmentStats.start(len(counts))
    standing.counts[:] = counts
    return planner.choose(client, turn, 0.0, planner.feasible(client), standing, rng)


class Fixed(Scheduler):
    """A scheduler that always makes the same choice."""

    def __init__(self, choice: object) -> None:
        self.choice = choice

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return self.choice  # type: ignore[return-value]


@pytest.mark.parametrize("choice", [True, None, 1.0, -1, 4, 3, 2])
def test_wrong_choice_is_refused(choice: object) -> None:
    table = costs(4)
    table[0, 3] = INF
    planner = SchedulerRunner.planned(Fixed(choice), table)
    with pytest.raises(WrongChoice) as caught:
        choose(planner, 0, 0, np.zeros(4, np.int64), np.random.default_rng(0))
    assert "Fixed" in caught.value.problem
    assert repr(choice) in caught.value.problem


# The values are K* for beta = .1 .3 .5 .7 .9, and then max_n min_j c and max c at beta = .9.
TABLE = {
    2: (0.400, 0.400, 0.400, 0.600, 0.600, 0.400, 0.600),
    3: (0.200, 0.200, 0.300, 0.300, 0.500, 0.200, 0.500),
    4: (0.133, 0.133, 0.200, 0.300, 0.400, 0.100, 0.400),
    5: (0.117, 0.117, 0.200, 0.300, 0.350, 0.050, 0.350),
}


@pytest.mark.parametrize("fragments", TABLE)
def test_delay_bounds_equal_the_table(fragments: int) -> None:
    *bounds, work_for_all, longest = TABLE[fragments]
    for slow, bound in zip((1, 3, 5, 7, 9), bounds, strict=True):
        assert delay_bound(costs(fragments, slow)) == pytest.approx(bound, abs=5e-4)
    assert costs(fragments, 9).min(axis=1).max() == pytest.approx(work_for_all)
    assert costs(fragments, 9).max() == pytest.approx(longest)


@pytest.mark.parametrize(("fragments", "slow_set"), [(2, [0]), (3, [0, 1]), (4, [0, 1]), (5, [0, 1, 2])])
def test_feasible_fragments_equal_the_example_with_half_slow_clients(fragments: int, slow_set: list[int]) -> None:
    table = costs(fragments)
    scheduler = SchedulerRunner.planned(GreRAA(), table)
    for client in range(10):
        assert scheduler.feasible(client).tolist() == (slow_set if client < 5 else list(range(fragments)))


def test_the_bound_is_compared_with_tolerance() -> None:
    table = np.array([[0.1 + 0.2, 0.5]])
    # The difference is one rounding unit (ulp).
    assert table[0, 0] > 0.3
    assert SchedulerRunner.planned(GreRAA(), table, 0.3).feasible(0).tolist() == [0]
    # One more sample in 144 is within the tolerance.
    assert SchedulerRunner.planned(GreRAA(), table, 0.3 / 1.009).feasible(0).tolist() == [0]
    assert SchedulerRunner.planned(GreRAA(), table, 0.3 / 1.02).feasible(0).tolist() == []


def test_client_without_a_feasible_fragment_gets_its_cheapest() -> None:
    """Learned costs may exceed a delay bound that the user set."""
    table = costs(4)
    runner = SchedulerRunner.planned(GreRAA(), table, bound=0.01)
    assert runner.feasible(0).tolist() == []
    counts = np.zeros(4, np.int64)
    assert choose(runner, 0, 0, counts, np.random.default_rng(0)) == table[0].argmin()


def test_offline_sets_cover_every_client_and_every_fragment() -> None:
    # N = 10, M = 3. Sorted by speed, the n-th client gets the fragment number ceil(n 3 / 10), counted from the
    # largest.
    # The fast clients 5 to 9 get 1 1 1 2 2, and the slow clients get 2 3 3 3 3.
    assert [s.tolist() for s in offline_sets(costs(3))] == [[1], [0], [0], [0], [0], [2], [2], [2], [1], [1]]
    # N = 2 < M = 4: the fast client 1 takes the two large fragments, and the slow client the two small ones.
    assert [s.tolist() for s in offline_sets(costs(4, slow=1, clients=2))] == [[1, 0], [3, 2]]
    assert [s.tolist() for s in offline_sets(costs(5, slow=0, clients=1))] == [[4, 3, 2, 1, 0]]


def test_offline_cycles_through_the_fragments_of_a_client() -> None:
    scheduler = SchedulerRunner.planned(Offline(), costs(4, slow=1, clients=2), 1.0)
    counts, rng = np.zeros(4, np.int64), np.random.default_rng(0)
    assert [choose(scheduler, 0, turn, counts, rng) for turn in range(4)] == [1, 0, 1, 0]
    assert [choose(scheduler, 1, turn, counts, rng) for turn in range(3)] == [3, 2, 3]


def test_fragment_that_a_device_cannot_hold_is_never_chosen() -> None:
    table = np.array([[0.1, INF, INF], [0.1, 0.2, INF], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    counts = np.array([9, 0, 0])
    rng = np.random.default_rng(0)
    for make in SCHEDULERS.values():
        scheduler = SchedulerRunner.planned(make(), table)
        assert scheduler.feasible(0).tolist() == [0]
        if make is not Offline:
            assert {choose(scheduler, 0, turn, counts, rng) for turn in range(20)} == {0}
            assert 2 not in {choose(scheduler, 1, turn, counts, rng) for turn in range(20)}
    assert np.isfinite(delay_bound(table))


def test_delay_bound_counts_the_assigned_fragments_that_fit() -> None:
    assert delay_bound(np.array([[1.0, 2.0, 3.0, INF]])) == 3
    # Of two equal devices, one gets the two largest fragments. Only the second largest fits.
    assert delay_bound(np.array([[1.0, 2.0, 3.0, INF]] * 2)) == 3
    # None of the two largest fragments fits, so the cheapest counts. The other device gets the other two.
    assert delay_bound(np.array([[1.0, 2.0, INF, INF]] * 2)) == 2


def test_offline_refuses_before_the_run_a_device_that_lacks_the_memory_for_its_fragment(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,memory\n1,1\n4,0.35\n")
    fields: dict[str, Any] = {"engine": "local", "clients": 2, "compute": devices}
    with refuses("scheduler", "client 1", "gre-raa", got="offline"):
        build_run(Experiment(**fields, method="fed-raa-offline"))
    build_run(Experiment(**fields, method="fed-raa"))


def test_check_of_a_run_computes_the_offline_assignment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_run(Experiment(engine="local", clients=3, method="fed-raa-offline"))
    calls = []

    def count_calls(costs: Any) -> Any:
        calls.append(costs)
        return offline_sets(costs)

    monkeypatch.setattr(baselines, "offline_sets", count_calls)
    check_runnable(spec)
    assert len(calls) == 1


def test_gre_raa_chooses_among_feasible_fragments_and_mp_among_all() -> None:
    table, rng = costs(4), np.random.default_rng(0)
    counts = np.array([5, 4, 1, 0])
    gre, mp = SchedulerRunner.planned(GreRAA(), table), SchedulerRunner.planned(MinimumPriority(), table)
    # The fragments are 0 and 1.
    assert choose(gre, 0, 0, counts, rng) == 1
    assert choose(gre, 9, 0, counts, rng) == 3
    assert choose(mp, 0, 0, counts, rng) == 3


def test_gre_raa_without_a_bound_equals_minimum_priority() -> None:
    table = costs(5)
    for seed in range(200):
        counts = np.random.default_rng(seed).integers(0, 4, 5)
        draws = [
            choose(SchedulerRunner.planned(make(), table, INF), seed % 10, 0, counts, np.random.default_rng([1, seed]))
            for make in (GreRAA, MinimumPriority)
        ]
        assert draws[0] == draws[1]


def chi_square(draws: list[int], kinds: int) -> float:
    seen = np.bincount(draws, minlength=kinds)
    return float(((seen - len(draws) / kinds) ** 2 / (len(draws) / kinds)).sum())


def test_ties_are_broken_uniformly() -> None:
    rng = np.random.default_rng(7)
    scheduler = SchedulerRunner.planned(GreRAA(), costs(4), INF)
    draws = [choose(scheduler, 0, 0, np.array([1, 1, 9, 1]), rng) for _ in range(6000)]
    assert set(draws) == {0, 1, 3}
    # The limit is the 99.9 % point of chi-square with 2 degrees of freedom. The paper's pseudocode would draw the
    # fragments 3000, 1500 and 1500 times, which gives 750.
    assert chi_square([{0: 0, 1: 1, 3: 2}[draw] for draw in draws], 3) < 13.8


def test_random_is_uniform_over_all_fragments_at_any_cost() -> None:
    rng = np.random.default_rng(8)
    scheduler = SchedulerRunner.planned(Random(), costs(4), 0.2)
    draws = [choose(scheduler, 0, 0, np.array([0, 50, 3, 9]), rng) for _ in range(6000)]
    assert chi_square(draws, 4) < 16.3  # 99.9 % point, 3 degrees of freedom


def simulate(
    scheduler: SchedulerRunner, table: npt.NDArray[np.float64], updates: int
) -> tuple[float, float, list[int]]:
    """Return the time per update, the mean total staleness after the start, and the updates per fragment."""
    rng = np.random.default_rng(0)
    counts = np.zeros(table.shape[1], np.int64)
    due: list[tuple[float, int, int, int, int]] = []
    now, staleness = 0.0, []
    idle = list(range(len(table)))
    turns = np.zeros(len(table), np.int64)
    for step in range(updates):
        for client in idle:
            j = choose(scheduler, client, int(turns[client]), counts, rng)
            turns[client] += 1
            heapq.heappush(due, (now + table[client, j] * rng.uniform(0.9, 1.1), client, j, step, int(turns[client])))
        now, client, j, sent, _ = heapq.heappop(due)
        counts[j] += 1
        staleness.append(step - sent)
        idle = [client]
    return now / updates, float(np.mean(staleness[100:])), counts.tolist()


@pytest.mark.parametrize(("fragments", "per_update"), [(2, 0.0250), (3, 0.0167), (4, 0.0125), (5, 0.0100)])
@pytest.mark.parametrize("name", ["gre-raa", "minimum-priority", "random"])
def test_time_per_update_is_one_over_fragments_times_total_speed(name: str, fragments: int, per_update: float) -> None:
    # With equal shares of updates the mean task is 1/M of the model. The speeds sum to 20, so an update takes 1/(20 M).
    table = costs(fragments)
    seconds, staleness, counts = simulate(SchedulerRunner.planned(SCHEDULERS[name](), table), table, 8000)
    assert seconds == pytest.approx(1 / (20 * fragments), rel=0.02 if name == "random" else 0.01)
    assert seconds == pytest.approx(per_update, rel=0.025)
    # The staleness is N - 1, because every other client has one update between two updates of a client.
    assert staleness == pytest.approx(9, abs=0.05)
    if name != "random":
        assert max(counts) - min(counts) <= 10


@pytest.mark.parametrize("seed", range(5))
def test_planned_bound_gives_every_client_a_fragment_and_covers_all_fragments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        clients, fragments = int(rng.integers(1, 12)), int(rng.integers(1, 6))
        table = rng.dirichlet(np.ones(fragments))[None, :] / rng.lognormal(size=clients)[:, None]
        scheduler = SchedulerRunner.planned(GreRAA(), table)
        held = [scheduler.feasible(client) for client in range(clients)]
        assert all(feasible.size for feasible in held)
        assert set(np.concatenate(held).tolist()) == set(range(fragments))
