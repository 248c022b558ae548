"""TiFL forms tiers, spends credits and ranks tiers by its formula."""

import numpy as np
import pytest
from refusals import refuses

from fedraa.ledger.selection_context import ClientFacts, ClientStats
from fedraa.selection.tifl import TiFL, rank_probabilities

DURATIONS = np.array([9.0, 1.0, 5.0, 2.0, 7.0, 3.0])


def stats() -> ClientStats:
    return ClientStats(ClientFacts(np.full(6, 10), DURATIONS.copy(), lambda client, now: now))


def test_rank_probabilities_equal_the_fixture() -> None:
    losses = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    probabilities = rank_probabilities(losses, np.full(5, 20))
    assert probabilities == pytest.approx([0.33333, 0.26667, 0.2, 0.13333, 0.06667], abs=1e-5)


def test_a_tier_without_credits_has_no_probability() -> None:
    assert rank_probabilities(np.array([1.0, 3.0, 2.0]), np.array([1, 0, 1])) == pytest.approx([1 / 3, 0, 2 / 3])


def test_credits_of_100_rounds_are_divided_among_the_tiers() -> None:
    selection = TiFL(count=1, tiers=5, rounds=100)
    selection.choose(stats().view(np.arange(6), 1, step=0, now=0.0), np.random.default_rng(0))
    assert sorted(selection.state()["credits"]) == [19, 20, 20, 20, 20]


def test_a_round_takes_clients_of_one_tier_and_all_credits_are_used() -> None:
    """Three tiers by duration: {1, 3}, {5, 2}, {4, 0}. Six rounds give each tier two."""
    selection, rng = TiFL(count=2, tiers=3, rounds=6), np.random.default_rng(0)
    cohorts = []
    for step in range(12):
        cohorts.append(frozenset(selection.choose(stats().view(np.arange(6), 2, step=step, now=0.0), rng)))
    tiers = [frozenset({1, 3}), frozenset({2, 5}), frozenset({0, 4})]
    assert [cohorts[:6].count(tier) for tier in tiers] == [2, 2, 2]
    assert [cohorts[6:].count(tier) for tier in tiers] == [2, 2, 2]


def test_a_tier_with_a_rising_loss_gets_more_probability() -> None:
    observed, selection, rng = stats(), TiFL(count=2, tiers=3, rounds=99, interval=1), np.random.default_rng(0)
    selection.choose(observed.view(np.arange(6), 2, step=0, now=0.0), rng)
    for step in range(1, 4):
        for client in range(6):
            observed.record_update(client, 0, loss=DURATIONS[client] + step, duration=1.0, step=step)
        selection.choose(observed.view(np.arange(6), 2, step=step, now=0.0), rng)
    assert selection.state()["probabilities"] == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_tiers_have_equal_probabilities_when_a_period_begins() -> None:
    """A period has nine rounds, three of each tier. The ranking in its last round leaves one tier above 0."""
    observed, selection, rng = stats(), TiFL(count=2, tiers=3, rounds=7, interval=4), np.random.default_rng(0)
    for step in range(9):
        selection.choose(observed.view(np.arange(6), 2, step=step, now=0.0), rng)
        for client in range(6):
            observed.record_update(client, 0, loss=1.0 + step, duration=1.0, step=step)
    assert sorted(selection.state()["probabilities"]) == [0, 0, 1]
    selection.choose(observed.view(np.arange(6), 2, step=9, now=0.0), rng)
    assert selection.state()["probabilities"] == pytest.approx([1 / 3] * 3)
    assert sorted(selection.state()["credits"]) == [2, 3, 3]


def test_more_tiers_than_clients_are_refused() -> None:
    with refuses("participation.tiers", got=7):
        TiFL(count=1, tiers=7).choose(stats().view(np.arange(6), 1, step=0, now=0.0), np.random.default_rng(0))


def test_more_clients_than_the_smallest_tier_has_are_refused() -> None:
    """Four tiers of six clients: two of them have one client."""
    view = stats().view(np.arange(6), 2, step=0, now=0.0)
    with refuses("participation.count", got=2):
        TiFL(count=2, tiers=4).choose(view, np.random.default_rng(0))
