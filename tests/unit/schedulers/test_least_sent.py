"""Least-sent: tasks in flight count, the delay bound holds, and ties are drawn."""

import numpy as np

from schedulers import FragmentStats, GreRAA, LeastSent, SchedulerRunner


def chosen(scheduler: type, costs: np.ndarray, bound: float | None, tasks: int) -> list[int]:
    planner, standing = SchedulerRunner(scheduler()), FragmentStats.start(costs.shape[1])
    planner.plan(costs, bound)
    picks = []
    for client in range(tasks):
        rng = np.random.default_rng(client)
        picks.append(planner.choose(client % len(costs), 0, 0.0, planner.feasible(client % len(costs)), standing, rng))
        standing.sent[picks[-1]] += 1
    return picks


def test_clients_that_come_at_once_are_spread_evenly() -> None:
    equal = np.ones((12, 4))
    picks = chosen(LeastSent, equal, None, 12)
    assert [sorted(picks[start : start + 4]) for start in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    assert len({tuple(picks[start : start + 4]) for start in (0, 4, 8)}) > 1  # ties are not broken by number
    # Gre-RAA counts applied updates, and there are none here.
    assert np.bincount(chosen(GreRAA, equal, None, 12), minlength=4).tolist() != [3, 3, 3, 3]


def test_it_keeps_to_the_delay_bound() -> None:
    assert set(chosen(LeastSent, np.array([[1.0, 2.0, 9.0], [1.0, 9.0, 9.0]]), 2.0, 8)[::2]) <= {0, 1}
    assert set(chosen(LeastSent, np.array([[1.0, 2.0, 9.0], [1.0, 9.0, 9.0]]), 2.0, 8)[1::2]) == {0}
