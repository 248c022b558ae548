"""The built-in selections choose clients by their formulas, computed here with NumPy only."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.participation import PARTICIPATION, Selection
from fedraa.ledger.selection_context import ClientFacts, ClientStats, SelectionContext
from fedraa.selection.oort import Oort, score_clients
from fedraa.selection.power_of_choice import highest_losses

SAMPLES = np.array([10, 20, 30, 40, 50])
DURATIONS = np.array([5.0, 20.0, 8.0, 9.0, 7.0])


def now(client: int, time: float) -> float:
    return time


def facts(find_start: Callable[[int, float], float] = now) -> ClientFacts:
    return ClientFacts(SAMPLES.copy(), DURATIONS.copy(), find_start)


def view(stats: ClientStats, count: int, step: int = 0, candidates: Any = range(5)) -> SelectionContext:
    return stats.view(np.array(candidates), count, step=step, now=0.0)


def test_power_of_choice_equals_the_fixture() -> None:
    losses = np.array([0.9, 0.2, 0.7, 0.4, 0.8])
    assert highest_losses(losses, np.array([1, 2, 4]), 2) == [4, 2]


def test_power_of_choice_takes_the_lower_of_equal_losses() -> None:
    assert highest_losses(np.array([1.0, 2.0, 2.0, 2.0]), np.array([3, 2, 0]), 2) == [2, 3]


def test_power_of_choice_tries_clients_without_a_loss_first() -> None:
    stats = ClientStats(facts())
    for client, loss in ((0, 0.9), (1, 0.2), (2, 0.7), (3, 0.4)):
        stats.record_update(client, 0, loss=loss, duration=1.0, step=0)
    chosen = PARTICIPATION.resolve("power-of-choice(candidates=5)").choose(view(stats, 3), np.random.default_rng(0))
    assert list(chosen) == [4, 0, 2]


def test_power_of_choice_forgets_old_losses() -> None:
    stats = ClientStats(facts())
    for client, step in ((0, 0), (1, 5), (2, 9), (3, 9), (4, 9)):
        stats.record_update(client, 0, loss=1.0 + client, duration=1.0, step=step)
    rng = np.random.default_rng(0)
    recent = PARTICIPATION.resolve("power-of-choice(candidates=5, max_age=4)")
    assert list(recent.choose(view(stats, 2, step=9), rng)) == [0, 4]
    assert list(recent.choose(view(stats, 2, step=10), rng)) == [0, 1]
    ageless = PARTICIPATION.resolve("power-of-choice(candidates=5)")
    assert list(ageless.choose(view(stats, 2, step=10), rng)) == [4, 3]


def test_power_of_choice_draws_candidates_by_samples() -> None:
    stats = ClientStats(facts())
    for client in range(5):
        stats.record_update(client, 0, loss=1.0, duration=1.0, step=0)
    selection = PARTICIPATION.resolve("power-of-choice(candidates=1)")
    rng = np.random.default_rng(0)
    counts = np.bincount([selection.choose(view(stats, 1), rng)[0] for _ in range(6000)], minlength=5)
    assert counts / 6000 == pytest.approx(SAMPLES / 150, abs=0.02)


def test_oort_scores_equal_the_fixture() -> None:
    stats = np.array([np.sqrt(3 * (1 + 4 + 4)), np.sqrt(2 * 0.5), 3.0])
    assert stats == pytest.approx([5.19615242, 1, 3])
    scores = score_clients(
        stats, np.array([5.0, 20.0, 8.0]), np.array([10, 2, 5]), step=11, preferred=10.0, penalty=2.0
    )
    assert scores == pytest.approx([1.15485139, 0.08662412, 0.69574474], abs=1e-8)


def test_oort_exploration_equals_the_fixture() -> None:
    assert Oort().exploration_at(50) == pytest.approx(0.32775271)
    assert Oort().exploration_at(75) == 0.2


def test_oort_clips_the_utility() -> None:
    stats = np.array([1.0, 2.0, 100.0])
    same = {"durations": np.ones(3), "last": np.ones(3, int), "step": 1, "preferred": 9.0, "penalty": 2.0}
    scores = score_clients(stats, clip=0.5, **same)
    assert scores == pytest.approx((np.array([1, 2, 2]) - 0.999) / (100 - 0.999))


def test_oort_exploits_every_explored_client_without_error() -> None:
    stats = ClientStats(facts())
    for client in range(5):
        stats.record_update(client, 0, loss=1.0 + client, duration=1.0, step=client)
    assert sorted(Oort().choose(view(stats, 5, step=7), np.random.default_rng(0))) == [0, 1, 2, 3, 4]


def test_oort_explores_by_samples_and_speed() -> None:
    stats = ClientStats(facts())
    rng = np.random.default_rng(0)
    chosen = [Oort(percentile=50.0).choose(view(stats, 1), rng)[0] for _ in range(6000)]
    counts = np.bincount(chosen, minlength=5)
    weights = SAMPLES * np.where(DURATIONS > 8, (8 / DURATIONS) ** 2, 1.0)
    assert counts / 6000 == pytest.approx(weights / weights.sum(), abs=0.02)


@pytest.mark.parametrize(("losses", "percentile"), [((1.0, 1.0), 15.0), ((1.0, 9.0), 5.0), ((1.0, 2.0), 10.0)])
def test_oort_pacer_adapts_the_percentile_to_the_utility(losses: tuple[float, float], percentile: float) -> None:
    """A flat utility raises the percentile by 5, a change by 500 % lowers it, another change does neither."""
    stats = ClientStats(facts())
    oort = Oort(window=2, exploration=0.0, min_exploration=0.0)
    for step in range(6):
        for client in range(5):
            loss = losses[step > 3] / SAMPLES[client]
            stats.record_update(client, 0, loss=loss, duration=1.0, step=step)
        oort.choose(view(stats, 2, step=step + 1), np.random.default_rng(step))
    assert oort.state()["threshold"] == percentile


def test_oort_leaves_out_frequent_clients() -> None:
    stats = ClientStats(facts())
    for step in range(4):
        stats.record_update(4, 0, loss=9.0, duration=1.0, step=step)
    oort = Oort(max_participations=3)
    chosen = [oort.choose(view(stats, 2, step=5), np.random.default_rng(seed)) for seed in range(20)]
    assert all(4 not in clients for clients in chosen)


def test_round_robin_takes_turns_and_skips_busy_clients() -> None:
    stats, selection, rng = ClientStats(facts()), PARTICIPATION.resolve("round-robin"), np.random.default_rng(0)
    assert selection.choose(view(stats, 2), rng) == [0, 1]
    assert selection.choose(view(stats, 2, candidates=[0, 1, 3, 4]), rng) == [3, 4]
    assert selection.choose(view(stats, 3), rng) == [0, 1, 2]


def test_weighted_draws_by_samples() -> None:
    stats, selection, rng = ClientStats(facts()), PARTICIPATION.resolve("weighted"), np.random.default_rng(0)
    counts = np.bincount([selection.choose(view(stats, 1), rng)[0] for _ in range(6000)], minlength=5)
    assert counts / 6000 == pytest.approx(SAMPLES / 150, abs=0.02)


def test_available_prefers_clients_that_are_available_first() -> None:
    starts = {0: 5.0, 1: 0.0, 2: 9.0, 3: 0.0, 4: 2.0}
    stats = ClientStats(facts(lambda client, time: starts[client]))
    selection = PARTICIPATION.resolve("available")
    assert sorted(selection.choose(view(stats, 2), np.random.default_rng(0))) == [1, 3]
    assert selection.choose(view(stats, 4), np.random.default_rng(0))[2:] == [4, 0]


def test_losses_are_relative_to_the_submodel() -> None:
    """With two submodels, a loss is divided by the running mean of its submodel; with one it stays as it is."""
    stats = ClientStats(facts())
    stats.record_update(0, 0, loss=2.0, duration=1.0, step=0)
    stats.record_update(1, 0, loss=4.0, duration=1.0, step=0)
    assert view(stats, 1).losses[:2] == pytest.approx([2, 4])
    stats.record_update(2, 1, loss=0.5, duration=1.0, step=0)
    mean = 2 + 0.1 * (4 - 2)
    assert view(stats, 1).losses[:3] == pytest.approx([2 / mean, 4 / mean, 1.0])


@pytest.mark.parametrize(
    "text", ["power-of-choice:2", "oort:2", "weighted:2", "round-robin:2", "available:2", "tifl(count=2, tiers=2)"]
)
def test_state_of_a_selector_is_complete(text: str) -> None:
    """A selector that is saved and restored after each round makes the same choices as an undisturbed one."""

    def play(interrupted: bool) -> list[list[int]]:
        selector = ClientSelector(PARTICIPATION.copy_for_run(text), facts(), clients=5, seed=1)
        rounds = []
        for step in range(30):
            if interrupted:
                saved = selector.state()
                selector = ClientSelector(PARTICIPATION.copy_for_run(text), facts(), clients=5, seed=1)
                selector.restore(saved)
            cohort = list(selector.choose_cohort(step, float(step), ()))
            for client in cohort:
                selector.record_update(client, 0, loss=1.0 + client, duration=float(client), step=step)
            rounds.append(cohort)
        return rounds

    assert play(True) == play(False)
    assert all(len(cohort) == 2 for cohort in play(False))


class Wrong(Selection):
    def __init__(self, chosen: list[int]) -> None:
        self.chosen = chosen

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        return self.chosen


@pytest.mark.parametrize("chosen", [[], [7], [1, 1], [3]])
def test_a_wrong_choice_is_refused(chosen: list[int]) -> None:
    selector = ClientSelector(Wrong(chosen), facts(), clients=5, seed=1)
    with pytest.raises(ValueError, match="participation") as caught:
        selector.choose_cohort(0, 0.0, {3})
    assert caught.value.field == "participation"  # type: ignore[attr-defined]


def test_an_asynchronous_server_starts_no_fewer_clients_than_its_concurrency() -> None:
    selector = ClientSelector(Wrong([2]), facts(), clients=5, seed=1, field="next_client")
    with refuses("next_client", "view.count"):
        selector.choose_first(3)
    assert selector.choose_first(1) == [2]


@pytest.mark.parametrize("candidates", [2, 6])
def test_wrong_number_of_candidates_is_refused_in_rounds_and_without_rounds(candidates: int) -> None:
    selection = PARTICIPATION.copy_for_run(f"power-of-choice(candidates={candidates})")
    selector = ClientSelector(selection, facts(), clients=5, seed=1, field="next_client")
    with refuses("power-of-choice.candidates", got=candidates):
        selector.choose_first(3)


@pytest.mark.parametrize(("needed", "started"), [(10, 11), (95, 105), (100, 110)])
def test_over_selection_starts_a_whole_product_of_clients(needed: int, started: int) -> None:
    """1.1 * 100 is 110.00000000000001 in floating point, and 1.1 * 95 is 104.5."""
    sample = PARTICIPATION.resolve(f"sample:{needed}")
    selector = ClientSelector(sample, None, clients=200, seed=1, over_selection=1.1)
    assert len(selector.choose_cohort(0, 0.0, ())) == started
