"""The participation correction, the weights of deltas, and the Polyak average, against results by hand."""

from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa.messages import Vector
from fedraa.methods.fed_quilt import DeltaMix
from fedraa.methods.fedasync import ConvexMix
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.mixing import LocalMean
from fedraa.server.participation_correction import balance_factors, balanced_weight, mean_pause
from fedraa.server.polyak import PolyakAveraging
from fedraa.vectors.index_ranges import common_places


def test_correction_factor_is_1_for_equal_clients_and_for_power_0() -> None:
    np.testing.assert_allclose(balance_factors(np.full(7, 60), np.full(7, 0.3), 0.5), 1, rtol=1e-15)
    assert balance_factors(np.array([1, 5]), np.array([0.1, 9.0]), 0.0).tolist() == [1.0, 1.0]


def test_correction_factors_have_the_mean_1_over_all_steps() -> None:
    samples, rates = np.array([10, 30, 60]), np.array([1.0, 2.0, 5.0])
    # The shares of data are .1, .3, .6, and of steps .125, .25, .625. With the power 1 the weights are their quotients.
    np.testing.assert_allclose(balance_factors(samples, rates, 1.0), [0.8, 1.2, 0.96])
    half = np.sqrt([0.8, 1.2, 0.96])
    np.testing.assert_allclose(balance_factors(samples, rates, 0.5), half / (np.array([0.125, 0.25, 0.625]) @ half))


def test_correction_factor_scales_a_weight_to_at_most_1() -> None:
    assert [balanced_weight(0.6, factor) for factor in (1.0, 0.5, 2.0)] == [0.6, 0.3, 1.0]
    # A custom staleness weight is used unchanged.
    assert balanced_weight(1.5, 1.0) == 1.5


def arrival(delta: float, *, staleness: int = 0, balance: float = 1.0) -> ClientUpdate:
    sent = np.array([5, 5], np.float32)
    return ClientUpdate(0, 0, np.array([1, 2]), sent + np.float32(delta), sent, staleness, 10, 0.0, balance)


@pytest.mark.parametrize(
    ("clients", "fragments", "factor", "weight"),
    [(10, 4, 1.0, 0.48), (10, 4, 0.5, 0.24), (10, 4, 3.0, 1.0), (2, 4, 1.0, 1.0), (2, 4, 0.5, 0.5), (1, 1, 1.0, 1.0)],
)
def test_delta_weight_is_gain_times_factor_times_fragments_over_clients(
    clients: int, fragments: int, factor: float, weight: float
) -> None:
    model = AsyncModel(np.array([0, 10, 20, 30], np.float32), clients, fragments)
    taken = DeltaMix().bind(model).apply_update(arrival(2.0, staleness=9, balance=factor), model)
    assert taken.weight == pytest.approx(weight)
    np.testing.assert_allclose(model.params, [0, 10 + 2 * weight, 20 + 2 * weight, 30], rtol=1e-6)


def test_coordinates_in_all_fragments_get_the_weight_over_the_fragments() -> None:
    """N = 10, M = 4: the weight is 1.2 * 4 / 10 = .48 on one fragment, and 1.2 / 10 at the shared coordinate 2."""
    indices = [np.array([1, 2]), np.array([0, 2]), np.array([2, 3]), np.array([2, 4])]
    common = common_places(indices, 5)
    assert [places.tolist() for places in common] == [[1], [1], [0], [0]]
    model = AsyncModel(np.array([0, 10, 20, 30, 40], np.float32), 10, 4, common=common)
    assert DeltaMix().bind(model).apply_update(arrival(2.0), model).weight == pytest.approx(0.48)
    np.testing.assert_allclose(model.params, [0, 10.96, 20.24, 30, 40], rtol=1e-6)


def test_omitted_coordinates_are_not_common() -> None:
    indices = [np.array([0, 1, 2]), np.array([0, 2, 3])]
    places = common_places(indices, 4, np.array([True, False, False, False]))
    assert [part.tolist() for part in places] == [[2], [1]]


def test_delta_weight_is_at_most_1_with_few_clients() -> None:
    """N = 2, M = 4: 1.2 * 4 / 2 is cut to 1, and shared coordinates get 1.2 / 2."""
    model = AsyncModel(np.array([0, 10, 20, 30], np.float32), 2, 4, common=(np.array([0]),))
    assert DeltaMix().bind(model).apply_update(arrival(2.0), model).weight == 1
    np.testing.assert_allclose(model.params, [0, 11.2, 22, 30], rtol=1e-6)
    even = DeltaMix(spread=False).bind(model)
    assert even.shared_weight == 1


def test_one_fragment_has_no_common_places_and_whole_models_have_all() -> None:
    assert [places.tolist() for places in common_places([None], 3)] == [[]]
    assert [places.tolist() for places in common_places([None, np.arange(3)], 3)] == [[0, 1, 2]] * 2


def test_convex_mix_applies_the_correction_factor() -> None:
    model = AsyncModel(np.zeros(3, np.float32), 1, 1)
    assert ConvexMix(0.6).bind(model).apply_update(arrival(0.0, balance=0.5), model).weight == pytest.approx(0.3)
    np.testing.assert_allclose(model.params, [0, 1.5, 1.5], rtol=1e-6)


def test_fedbuff_applies_the_correction_factor_also_above_1() -> None:
    """K = 2, s = 1 / sqrt(1 + tau): (2 * 1.5 * 1 + 4 * .5 / sqrt 4) / 2 = 2."""
    model = AsyncModel(np.zeros(3, np.float32), 2, 1)
    rule = FedBuffRule(2).bind(model)
    assert rule.apply_update(arrival(2.0, balance=1.5), model) == ApplyResult(0.75, False)
    assert rule.apply_update(arrival(4.0, balance=0.5, staleness=3), model) == ApplyResult(0.125, True)
    np.testing.assert_allclose(model.params, [0, 2, 2])


@pytest.mark.parametrize("gain", [0, -1, float("inf"), float("nan")])
def test_server_gain_that_is_not_positive_and_finite_is_refused(gain: float) -> None:
    with refuses("async_rule.server_gain"):
        ASYNC_RULE.resolve(DeltaMix(gain))


def test_mean_pause_keeps_the_requested_number_of_clients_busy() -> None:
    costs = np.array([[1.0, 3.0], [2.0, np.inf], [0.5, 0.5], [4.0, 8.0]])
    for some in (1, 2, 3):
        wait = mean_pause(costs, some)
        busy = [(1 / (1 + wait) + 3 / (3 + wait)) / 2, 2 / (2 + wait), 0.5 / (0.5 + wait)]
        busy.append((4 / (4 + wait) + 8 / (8 + wait)) / 2)
        assert sum(busy) == pytest.approx(some)
    assert mean_pause(costs, None) == mean_pause(costs, 4) == mean_pause(costs, 9) == 0


def test_delta_weight_uses_the_number_of_concurrent_clients() -> None:
    few = AsyncModel(np.zeros(4, np.float32), 100, 4, 10)
    assert DeltaMix().bind(few).weight(0) == pytest.approx(0.48)
    assert DeltaMix(staleness="delay-adaptive").bind(few).weight(20) == pytest.approx(0.24)
    assert ConvexMix(0.6, "delay-adaptive").bind(few).weight(20) == pytest.approx(0.3)


class Counting:
    """A server with the models 10, 20, 30, ... after its steps. Every second commit makes a step."""

    def __init__(self) -> None:
        self.step, self.commits = 0, 0
        self.params: Vector = np.full(2, 7, np.float32)

    def commit(self, update: object, now: float) -> tuple[int, ...]:
        self.commits += 1
        if self.commits % 2 == 0:
            self.step += 1
            self.params[:] = 10 * self.step
        return (3,)

    def state(self) -> dict[str, object]:
        return {"step": self.step, "commits": self.commits, "params": self.params.copy()}

    def restore(self, state: dict[str, object]) -> None:
        vars(self).update(state)


def averaged(share: float) -> PolyakAveraging:
    server: Any = Counting()
    return PolyakAveraging(server, share, LocalMean(server))


def test_polyak_average_equals_the_formula_and_changes_only_at_steps() -> None:
    server = averaged(0.5)
    assert server.params.tolist() == [7, 7]
    means = []
    for _ in range(6):
        assert server.commit(None, 0.0) == (3,)  # type: ignore[arg-type]
        means.append(float(server.params[0]))
    # 10, then 10 + (20 - 10) / 1.5, then that + (30 - that) / 2
    second = 10 + 10 / 1.5
    assert means == pytest.approx([7, 10, 10, second, second, second + (30 - second) / 2])


def test_polyak_average_continues_from_its_restored_state() -> None:
    one, other = (averaged(0.1) for _ in range(2))
    for _ in range(5):
        one.commit(None, 0.0)  # type: ignore[arg-type]
    other.restore(one.state())
    for _ in range(5):
        one.commit(None, 0.0)  # type: ignore[arg-type]
    for _ in range(5):
        other.commit(None, 0.0)  # type: ignore[arg-type]
    assert one.params.tobytes() == other.params.tobytes()
