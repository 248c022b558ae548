"""Least-sent: tasks in flight count, the delay bound holds, and ties are drawn."""

import heapq

import numpy as np
import pytest

from schedulers import FragmentStats, GreRAA, SchedulerRunner
from schedulers.greedy import LeastSent


def choose_fragments(scheduler: type, costs: np.ndarray, bound: float | None, tasks: int) -> list[int]:
    planner, standing = SchedulerRunner.planned(scheduler(), costs, bound), FragmentStats.start(costs.shape[1])
    picks = []
    for client in range(tasks):
        rng = np.random.default_rng(client)
        picks.append(planner.choose(client % len(costs), 0, 0.0, planner.feasible(client % len(costs)), standing, rng))
        standing.sent[picks[-1]] += 1
    return picks


def test_least_sent_spreads_simultaneous_clients_evenly() -> None:
    equal = np.ones((12, 4))
    picks = choose_fragments(LeastSent, equal, None, 12)
    assert [sorted(picks[start : start + 4]) for start in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    # Ties are broken at random, not by number.
    assert len({tuple(picks[start : start + 4]) for start in (0, 4, 8)}) > 1
    # Gre-RAA counts applied updates, and there are none here.
    assert np.bincount(choose_fragments(GreRAA, equal, None, 12), minlength=4).tolist() != [3, 3, 3, 3]


def test_least_sent_keeps_the_delay_bound() -> None:
    assert set(choose_fragments(LeastSent, np.array([[1.0, 2.0, 9.0], [1.0, 9.0, 9.0]]), 2.0, 8)[::2]) <= {0, 1}
    assert set(choose_fragments(LeastSent, np.array([[1.0, 2.0, 9.0], [1.0, 9.0, 9.0]]), 2.0, 8)[1::2]) == {0}


SHARES = {2: (0.4, 0.6), 3: (0.2, 0.3, 0.5), 4: (0.1, 0.2, 0.3, 0.4), 5: (0.05, 0.1, 0.2, 0.3, 0.35)}


def crowding(scheduler: GreRAA, fragments: int, tasks: int = 4000) -> float:
    """Return the mean number of other tasks on the same fragment when a task starts: 5 slow and 5 fast clients."""
    costs = np.array(SHARES[fragments])[None, :] / np.repeat([1.0, 3.0], 5)[:, None]
    runner = SchedulerRunner.planned(scheduler, costs)
    stats, rng = FragmentStats.start(fragments), np.random.default_rng(0)
    due: list[tuple[float, int, int]] = []
    crowd = []
    idle, now = list(range(10)), 0.0
    for _ in range(tasks):
        for client in idle:
            j = runner.choose(client, 0, now, runner.feasible(client), stats, rng)
            crowd.append(sum(task[2] == j for task in due))
            stats.sent[j] += 1
            heapq.heappush(due, (now + costs[client, j] * rng.uniform(0.9, 1.1), client, j))
        now, client, j = heapq.heappop(due)
        stats.counts[j] += 1
        idle = [client]
    return float(np.mean(crowd))


@pytest.mark.parametrize(
    ("fragments", "literal", "in_flight"), [(2, 4.7, 4.1), (3, 3.9, 2.6), (4, 2.9, 1.8), (5, 2.8, 1.4)]
)
def test_gre_raa_in_flight_reduces_tasks_on_the_same_fragment(fragments: int, literal: float, in_flight: float) -> None:
    # The numbers of an independent simulation of runs on digits, with the same devices.
    assert crowding(GreRAA(), fragments) == pytest.approx(literal, abs=0.25)
    assert crowding(GreRAA(in_flight=True), fragments) == pytest.approx(in_flight, abs=0.2)
    assert crowding(LeastSent(), fragments) == crowding(GreRAA(in_flight=True), fragments)
