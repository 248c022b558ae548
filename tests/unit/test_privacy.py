"""Differential privacy: the private mean, clipping and the measured distribution of the noise."""

from typing import Any

import numpy as np
import pytest
from private_rounds import noisy_sum
from refusals import refuses

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.components.state import save_state
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.messages import SharedBuffer, Task, Update
from fedraa.methods.ringmaster_lmo import RingmasterLMO
from fedraa.privacy.local import privatise
from fedraa.privacy.privacy import PRIVACY
from fedraa.privacy.private_mean import PrivateMean
from fedraa.rng import generator
from fedraa.server.async_rule import ApplyResult
from fedraa.server.stores.local import LocalStore
from fedraa.settings.resolve import resolve_method
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.vectors.delta_view import DeltaView

DELTAS = [(3.0, 4.0), (0.3, 0.4), (1.0, 0.0), (0.0, -2.0)]
TINY = 1e-9


def mean_of(
    deltas: list[tuple[float, ...]], text: str, *, cohort: float = 4, fixed: bool = True, seed: int = 0
) -> np.ndarray:
    """Return the private mean of deltas [d]. NaN marks a coordinate that a client did not train."""
    size = 2
    mean = PrivateMean(noisy_sum(text, size, cohort=cohort, whole=fixed, seed=seed), fixed=fixed).bind(size, 10)
    counts = np.zeros(size, np.int32)
    for client, delta in enumerate(deltas):
        values = np.array(delta, np.float32)
        where = np.flatnonzero(~np.isnan(values))
        counts[where] += 1
        mean.add(ClientDelta(client, DeltaView(where, values[where]), 7.0, 0.1))
    result, moved = mean.finish(RoundTotals(counts, 0.1))
    assert moved.tolist() == [fixed or bool(count) for count in counts]
    return result


@pytest.mark.parametrize(("cohort", "expected"), [(4, (0.475, 0.05)), (5, (0.38, 0.04))])
def test_private_mean_is_the_clipped_sum_over_a_fixed_divisor(cohort: int, expected: tuple[float, float]) -> None:
    """The weight 7 of the contributions has no effect, and a client that fails does not change the divisor."""
    assert mean_of(DELTAS, f"central(noise={TINY})", cohort=cohort) == pytest.approx(expected, abs=1e-6)
    without_last = mean_of(DELTAS[:3], f"central(noise={TINY})", cohort=4)
    assert without_last == pytest.approx((1.9 / 4, 1.2 / 4), abs=1e-6)


def test_zero_update_is_not_scaled() -> None:
    assert mean_of([(0.0, 0.0)], f"central(noise={TINY})") == pytest.approx((0, 0), abs=1e-6)


def test_submodels_divide_by_their_coverage_and_only_covered_coordinates_move() -> None:
    nan = float("nan")
    mean = mean_of([(3.0, nan), (0.5, nan)], f"central(noise={TINY})", fixed=False)
    assert mean == pytest.approx((0.75, 0.0), abs=1e-6)


def test_noise_of_rounds_has_the_stated_distribution() -> None:
    """z = 2, C = 0.5 and D = 4: the standard deviation is 2 * 0.5 / 4 = 0.25. An empty round has noise as well."""
    noise = PrivateMean(noisy_sum("central(noise=2.0, clip=0.5)", 10_000), fixed=True).bind(10_000, 10)
    first, _ = noise.finish(RoundTotals(np.zeros(10_000, np.int32), 0.0))
    second, _ = noise.finish(RoundTotals(np.zeros(10_000, np.int32), 0.0))
    for drawn in (first, second):
        assert np.std(drawn) == pytest.approx(0.25, abs=0.005)
        assert np.mean(drawn) == pytest.approx(0, abs=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_noise_of_local_privacy_has_twice_the_clip_as_sensitivity() -> None:
    sent = privatise(np.full(10_000, 3.0, np.float32), PRIVACY.resolve("local(noise=1.5, clip=0.4)"), generator(0, "x"))
    assert np.std(sent) == pytest.approx(1.5 * 2 * 0.4, rel=0.03)
    clipped = privatise(np.array([3.0, 4.0], np.float32), PRIVACY.resolve(f"local(noise={TINY})"), generator(0, "x"))
    assert clipped == pytest.approx((0.6, 0.8), abs=1e-6)


def apply_updates(rule: str, text: str, *, size: int, updates: int, **values: Any) -> np.ndarray:
    """Return a model that starts at zero, after updates without a change: it consists of noise."""
    update = find_method(rule).update
    if values:
        update = find_method(rule).replace(**values).update
    store = LocalStore(
        np.zeros(size, np.float32),
        (),
        update,
        [1] * updates,
        noisy_sum=noisy_sum(text, size, cohort=update.per_step, whole=False),
    )
    whole = Assignment(0, Submodel((), None))
    for client in range(updates):
        buffer = SharedBuffer(store.params.copy())
        task = Task(client, client, 0, 0, 0, 0, (), buffer, 0.1, 1.0)
        store.apply_update(task, whole, Update(client, client, 0, 0, store.params.copy(), 1, 0.5, 0.0), 0)
    return store.params


@pytest.mark.parametrize(("first", "expected"), [(1.0, 1.0), (0.1, 0.11051709)])
def test_adaptive_clip_moves_towards_the_quantile(first: float, expected: float) -> None:
    """A clip below all norms grows. Flower's rule would shrink it to 0.0607 within five releases."""
    text = f"central-adaptive(noise={TINY}, clip={first}, bit_noise={TINY})"
    total = noisy_sum(text, 2)
    where = np.array([0, 1])

    def release() -> float:
        for norm in (5, 0.5, 1, 2):
            total.clip(np.array([norm, 0.0], np.float32), where, 0)
        total.release()
        return float(total.clips[0])

    assert release() == pytest.approx(expected, rel=1e-6)
    if first == 0.1:
        for _ in range(4):
            last = release()
        assert last == pytest.approx(0.1 * np.exp(0.1 * 5), rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "cohort", "expected"), [(1, 100, 1.00503782), (1, 20, 1.15470054), (0.5, 10, 0.57735027)]
)
def test_adaptive_noise_splits_the_budget(noise: float, cohort: int, expected: float) -> None:
    privacy = PRIVACY.resolve(f"central-adaptive(noise={noise})")
    assert privacy.update_noise(cohort) == pytest.approx(expected, abs=1e-8)


def test_adaptive_noise_without_a_solution_is_refused() -> None:
    with refuses("privacy.noise", "bit_noise", got=1.0):
        PRIVACY.resolve("central-adaptive(noise=1.0)").update_noise(10)


def test_each_fragment_has_a_separate_clip() -> None:
    total = noisy_sum(f"central-adaptive(noise={TINY}, clip=1.0, bit_noise={TINY})", 2, whole=False)
    total.clip(np.array([0.5], np.float32), np.array([0]), 0)
    total.clip(np.array([5.0], np.float32), np.array([1]), 1)
    total.release()
    assert total.clips == pytest.approx({0: np.exp(-0.2 * 0.5), 1: np.exp(0.2 * 0.5)})


def test_bit_noise_of_a_fragment_is_computed_from_the_whole_cohort() -> None:
    """The noise of the updates is computed for the bit noise 100 / 20 = 5, also if one client trains the fragment.

    One bit below the clip gives share = 1 + N(0, 5), so that log(clip) / -0.2 + 0.5 has the standard deviation 5.
    """
    total = noisy_sum("central-adaptive(noise=1.0, clip=1.0)", 2, cohort=100, whole=False)
    shares = []
    for _ in range(4000):
        total.clips[1] = 1.0
        total.clip(np.array([0.5], np.float32), np.array([1]), 1)
        total.release()
        shares.append(np.log(total.clips[1]) / -0.2 + 0.5)
    assert np.std(shares) == pytest.approx(5, rel=0.05)
    assert np.mean(shares) == pytest.approx(1, abs=0.3)


def test_noisy_sum_resumes_with_the_same_noise() -> None:
    text = "central-adaptive(noise=1.0, clip=0.1, bit_noise=3.0)"
    first = noisy_sum(text)
    where = np.array([0, 1])
    first.clip(np.array([3.0, 0.0], np.float32), where, 0)
    second = noisy_sum(text)
    second.restore(save_state(first))
    for total in (first, second):
        total.clip(np.array([0.0, 0.01], np.float32), where, 0)
    assert first.release()[0].tolist() == second.release()[0].tolist()
    assert first.clips == second.clips


def test_noise_of_a_buffer_has_the_stated_distribution() -> None:
    """FedBuff divides the sum of K = 4 updates by 4. Its noise of z = 2 and C = 0.5 is added once, at the 4th."""
    values = {"buffer_size": 4, "staleness": "constant"}
    before = apply_updates("fedbuff", "central(noise=2.0, clip=0.5)", size=10_000, updates=3, **values)
    assert not before.any()
    after = apply_updates("fedbuff", "central(noise=2.0, clip=0.5)", size=10_000, updates=4, **values)
    assert np.std(after) == pytest.approx(0.25, abs=0.005)


def test_noise_of_single_updates_has_the_stated_distribution() -> None:
    """FedAsync mixes with 0.6, so that the noise of one update has the standard deviation 0.6 * 2 * 0.5."""
    after = apply_updates("fedasync", "central(noise=2.0, clip=0.5)", size=10_000, updates=1)
    assert np.std(after) == pytest.approx(0.6, abs=0.012)


def send_update(store: LocalStore, task: int, staleness: int) -> ApplyResult:
    buffer = SharedBuffer(store.params.copy())
    sent = Task(task, 0, task, 0, 0, 0, (), buffer, 0.1, 1.0)
    update = Update(task, 0, 0, 0, store.params.copy(), 1, 0.5, 0.0)
    return store.apply_update(sent, Assignment(0, Submodel((), None)), update, staleness)


def test_ignored_update_counts_as_a_release() -> None:
    """Otherwise two updates of a client could be in one release, and epsilon would count them as two releases."""
    rule = RingmasterLMO(optimizer="sgd", delay_limit=2)
    noise = noisy_sum("central(noise=2.0)", cohort=1, whole=False)
    store = LocalStore(np.zeros(2, np.float32), (), rule, [1], noisy_sum=noise)
    assert [send_update(store, task, staleness).new_version for task, staleness in enumerate((5, 0))] == [False, True]
    assert store.state()["noisy_sum"]["releases"] == 2
    with refuses("privacy"):
        resolve_method(Experiment(engine="local", method="ringmaster-lmo", privacy="central", buffer_size=2))
