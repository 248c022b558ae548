"""RMS-normalized deltas equal a computation with NumPy, and runs with them replay and resume."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.methods.fed_quilt import SQUARES_WINDOW, DeltaMix, RMSNormalizedDelta
from fedraa.replay.replay import replay
from fedraa.server.async_rule import ASYNC_RULE, AsyncModel, ClientUpdate
from fedraa.vectors.index_ranges import common_places

# Coordinate 2 is in both fragments.
INDICES = [np.array([1, 2, 4]), np.array([0, 2, 3])]


def model(size: int = 5) -> AsyncModel:
    return AsyncModel(np.zeros(size, np.float32), 4, 2, common=common_places(INDICES, size))


def arrival(fragment: int, delta: np.ndarray) -> ClientUpdate:
    sent = np.full(len(delta), 5, np.float32)
    return ClientUpdate(0, fragment, INDICES[fragment], sent + delta.astype(np.float32), sent, 0, 10, 0.0)


def drawn(count: int) -> list[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(number % 2, rng.normal(size=3) * [1, 0.1, 0.01]) for number in range(count)]


@pytest.mark.parametrize("power", [0.25, 0.5, 1.0])
def test_rms_normalized_delta_equals_the_steps_by_hand(power: float) -> None:
    """Gain 1, N = 4, M = 2: the weight is 1 / 2, and 1 / 4 on shared coordinates."""
    state, theta, squares, counts = model(), np.zeros(5), np.zeros(5), [0, 0]
    rule = RMSNormalizedDelta(server_gain=1.0, power=power).bind(state)
    for fragment, delta in drawn(SQUARES_WINDOW * 2 + 20):
        at = INDICES[fragment]
        counts[fragment] += 1
        squares[at] += (delta**2 - squares[at]) / min(SQUARES_WINDOW, counts[fragment])
        step = delta / squares[at] ** (power / 2)
        step *= np.linalg.norm(delta) / np.linalg.norm(step)
        theta[at] += np.where(at == 2, 0.25, 0.5) * step
        assert rule.apply_update(arrival(fragment, delta), state).weight == 0.5
    np.testing.assert_allclose(state.params, theta, rtol=2e-4)


def test_power_0_equals_the_delta_mix() -> None:
    plain, evened = model(), model()
    rules = DeltaMix().bind(plain), RMSNormalizedDelta(power=0).bind(evened)
    for fragment, delta in drawn(20):
        for rule, state in zip(rules, (plain, evened), strict=True):
            rule.apply_update(arrival(fragment, delta), state)
    np.testing.assert_allclose(evened.params, plain.params, rtol=1e-5)


def test_unchanged_coordinate_and_empty_delta_do_not_move_the_model() -> None:
    state = model()
    rule = RMSNormalizedDelta().bind(state)
    rule.apply_update(arrival(0, np.zeros(3)), state)
    rule.apply_update(arrival(0, np.array([0, 1e-3, 1.0])), state)
    assert state.params[1] == 0
    assert np.isfinite(state.params).all()
    assert 0 < state.params[2] < state.params[4]


def test_restored_rule_continues_with_the_same_bits() -> None:
    whole, parted = model(), model()
    first = RMSNormalizedDelta().bind(whole)
    second = RMSNormalizedDelta().bind(parted)
    for number, (fragment, delta) in enumerate(drawn(30)):
        if number == 11:
            saved, second = second.state(), RMSNormalizedDelta().bind(parted)
            second.restore(saved)
        first.apply_update(arrival(fragment, delta), whole)
        second.apply_update(arrival(fragment, delta), parted)
    assert whole.params.tobytes() == parted.params.tobytes()


@pytest.mark.parametrize("power", [-0.1, 1.5, float("nan")])
def test_power_outside_0_to_1_is_refused(power: float) -> None:
    with refuses("async_rule.power"):
        ASYNC_RULE.resolve(RMSNormalizedDelta(power=power))


def test_gain_0_is_refused() -> None:
    with refuses("async_rule.server_gain", got=0):
        ASYNC_RULE.resolve(RMSNormalizedDelta(server_gain=0))


def test_run_replays_and_resumes_with_the_same_results(tmp_path: Path) -> None:
    same = {
        "async_rule": "rms-normalized-delta",
        "override": {"update.server_gain": 2.0},
        "local_steps": "auto:2",
        "clients": 4,
        "engine": "local",
    }
    whole = fl.run(method="fed-quilt", updates=24, out=tmp_path / "whole", **same)
    fl.run(method="fed-quilt", updates=12, out=tmp_path / "parts", **same)
    longer = fl.resume(tmp_path / "parts", updates=24)
    figures = [history.evals.drop(columns="wall") for history in (whole, longer)]
    assert figures[0].equals(figures[1])
    assert "consistent" in replay(tmp_path / "whole")
