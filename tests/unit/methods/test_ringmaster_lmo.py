"""Ringmaster LMO, and the steps of fixed length of Muon, against results in independent NumPy."""

from math import sqrt

import numpy as np
import pytest
from played_rules import START, TRIPLE, Played, random_arrivals
from refusals import refuses

from fedraa.methods.ringmaster_lmo import RingmasterLMO, find_agnostic_values
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.server.muon import FACTORS, Muon, NormalizedMomentum, find_blocks, orthogonalize
from fedraa.server.optimizers import SERVER_OPTIMIZER

EUCLIDEAN = NormalizedMomentum(server_lr=0.1, beta=0.5)


def polar(matrix: np.ndarray) -> np.ndarray:
    """Return U V^T of a matrix U S V^T."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ right


@pytest.mark.parametrize(("limit", "last", "steps"), [(3, (1.216915, 1.948569), 3), (2, (1.189443, 2.044721), 2)])
def test_ringmaster_lmo_on_the_euclidean_ball_equals_the_models_by_hand(
    limit: int, last: tuple[float, float], steps: int
) -> None:
    played = Played(RingmasterLMO(optimizer=EUCLIDEAN, delay_limit=limit)).all(TRIPLE)
    played.close((1.1, 2), (1.189443, 2.044721), last)
    assert sum(result.new_version for result in played.taken) == steps
    momentum = (0.25, -0.875) if steps == 3 else (0.5, 0.25)
    np.testing.assert_allclose(played.rule._stepping._m, momentum, atol=1e-7)


def test_ringmaster_lmo_without_momentum_is_normalised_ringmaster() -> None:
    rule = RingmasterLMO(optimizer=NormalizedMomentum(server_lr=0.3, beta=0.0), delay_limit=4)
    played = Played(rule, 3, np.ones(5))
    theta = np.ones(5)
    for client, gain, staleness in random_arrivals(30, 3):
        result = played.take(client, gain, staleness)
        assert result.new_version == (staleness < 4)
        assert result.weight == float(staleness < 4)
        if staleness < 4:
            theta = theta + 0.3 * np.array(gain) / np.linalg.norm(gain)
    np.testing.assert_allclose(played.model.params, theta, rtol=0, atol=1e-5)


def test_agnostic_values_equal_the_reference() -> None:
    limits, betas, factors = zip(*map(find_agnostic_values, range(5)), strict=True)
    assert limits == (1, 1, 1, 1, 2)
    np.testing.assert_allclose(1 - np.array(betas), (1, 1, 0.707107, 0.577350, 0.5), atol=1e-6)
    np.testing.assert_allclose(factors, (1, 0.594604, 0.438691, 0.353553, 0.299070), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_agnostic_steps_need_an_optimizer_with_one_decay(optimizer: str) -> None:
    RingmasterLMO(optimizer=optimizer)
    with refuses("optimizer", "beta"):
        RingmasterLMO(optimizer=optimizer, agnostic=True)


def test_agnostic_steps_count_only_accepted_updates() -> None:
    rule = RingmasterLMO(optimizer=NormalizedMomentum(server_lr=0.1), agnostic=True)
    played = Played(rule, 3, np.ones(5))
    theta, m, steps = np.ones(5), np.zeros(5), 0
    for client, gain, staleness in random_arrivals(200, 3):
        limit = max(1, int(sqrt(steps)))
        assert played.take(client, gain, staleness).new_version == (staleness < limit)
        if staleness < limit:
            share = min(1.0, 1 / sqrt(max(1, steps)))
            m = (1 - share) * m + share * np.array(gain)
            theta = theta + 0.1 / (steps + 1) ** 0.75 * m / np.linalg.norm(m)
            steps += 1
    assert steps > 20
    np.testing.assert_allclose(played.model.params, theta, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ("muon", ((0.928897, -0.592130), (0.251646, 0.758655))),
        ("per-step", ((0.985790, -0.530730), (0.429837, 0.935343))),
    ],
)
def test_newton_schulz_equals_the_reference(factors: str, expected: tuple[tuple[float, float], ...]) -> None:
    """The first result has six digits. The source of the second one has more digits of the factors."""
    matrix = np.array([[3, 0], [4, 5]], np.float32)
    tolerance = 2e-6 if factors == "muon" else 2e-5
    np.testing.assert_allclose(orthogonalize(matrix, FACTORS[factors]), expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(polar(matrix), [[0.894427, -0.447214], [0.447214, 0.894427]], atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6)])
def test_newton_schulz_comes_near_the_polar_factor(shape: tuple[int, int]) -> None:
    """All singular values come to within 0.2 of 1 with factors per step, and the singular vectors stay."""
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    result = orthogonalize(matrix, FACTORS["per-step"])
    np.testing.assert_allclose(np.linalg.svd(result, compute_uv=False), 1, atol=0.2)
    np.testing.assert_allclose(polar(result), polar(matrix), atol=1e-4)


def test_muon_steps_along_polar_factors_of_matrices_and_momentum_of_vectors() -> None:
    """Tensors of the shapes (4, 3), (3,) and (2, 3, 2): the last one counts as a matrix of 2 x 6."""
    optimizer = Muon(server_lr=0.1, beta=0.8, factors="per-step").bind(27, ((4, 3), (3,), (2, 3, 2)))
    params = np.zeros(27, np.float32)
    theta, m = np.zeros(27), np.zeros(27)
    for seed in range(3):
        delta = np.random.default_rng(seed).standard_normal(27).astype(np.float32)
        optimizer.step(params, delta, np.ones(27, bool))
        m = 0.8 * m + 0.2 * delta
        u = 0.8 * m + 0.2 * delta
        theta[:12] += 0.1 * sqrt(4 / 3) * polar(u[:12].reshape(4, 3)).reshape(-1)
        theta[12:15] += 0.1 * u[12:15]
        theta[15:] += 0.1 * polar(u[15:].reshape(2, 6)).reshape(-1)
    np.testing.assert_allclose(params[12:15], theta[12:15], rtol=0, atol=1e-6)
    # Newton-Schulz steps only come near the polar factor.
    assert np.linalg.norm(params - theta) < 0.15 * np.linalg.norm(theta)


def test_muon_of_a_fragment_is_muon_of_its_block() -> None:
    rows, columns = np.array([0, 2, 3]), np.array([1, 4])
    moved = np.zeros((5, 6), bool)
    moved[np.ix_(rows, columns)] = True
    delta = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    whole = Muon(server_lr=1.0).bind(30, ((5, 6),))
    block = Muon(server_lr=1.0).bind(6, ((3, 2),))
    params, part = np.ones(30, np.float32), np.ones(6, np.float32)
    whole.step(params, delta.reshape(-1), moved.reshape(-1))
    block.step(part, delta[np.ix_(rows, columns)].reshape(-1), np.ones(6, bool))
    assert params[moved.reshape(-1)].tobytes() == part.tobytes()
    assert (params[~moved.reshape(-1)] == 1).all()
    assert (whole._m[~moved.reshape(-1)] == 0).all()


@pytest.mark.parametrize("name", ["muon", "normalized-momentum"])
def test_a_delta_of_zeros_makes_no_step(name: str) -> None:
    optimizer = SERVER_OPTIMIZER.resolve(name).bind(4, ((2, 2),))
    params = np.array([*START, *START], np.float32)
    optimizer.step(params, np.zeros(4, np.float32), np.ones(4, bool))
    assert params.tolist() == [*START, *START]


def test_ringmaster_lmo_needs_an_optimizer() -> None:
    with refuses("optimizer", "muon"):
        ASYNC_RULE.resolve("ringmaster-lmo(optimizer=None)")


@pytest.mark.parametrize("order", ["in order", "columns reversed"])
def test_blocks_of_a_submodel_are_blocks_of_the_matrices(order: str) -> None:
    """The tensors have the shapes (5, 6), (6,), (2, 3, 2) and (1, 2, 2). Of the third, one entry is missing."""
    columns = [1, 4] if order == "in order" else [4, 1]
    first = np.arange(30).reshape(5, 6)[np.ix_([0, 2, 3], columns)]
    third = np.delete(np.arange(36, 48), 7)
    direction = np.random.default_rng(0).standard_normal(52).astype(np.float32)
    index = np.concatenate([first.reshape(-1), [30, 31], third, np.arange(48, 52)])
    whole = direction[index]
    blocks = find_blocks(((5, 6), (6,), (2, 3, 2), (1, 2, 2)), index)
    for block in blocks:
        block.orthogonalize(whole)
    factors = FACTORS["muon"]
    np.testing.assert_allclose([block.scale for block in blocks], [sqrt(3 / 2), sqrt(2 / 6), 1.0])
    expected = np.float32(sqrt(3 / 2)) * orthogonalize(direction[np.sort(first)], factors)
    np.testing.assert_array_equal(whole[:6].reshape(3, 2)[:, np.argsort(columns)], expected)
    np.testing.assert_array_equal(whole[6:8], direction[30:32])
    filled = direction[36:48].copy()
    filled[7] = 0
    expected = np.float32(sqrt(2 / 6)) * orthogonalize(filled.reshape(2, 6), factors)
    np.testing.assert_array_equal(whole[8:19], np.delete(expected.reshape(-1), 7))
    np.testing.assert_array_equal(whole[19:], orthogonalize(direction[48:].reshape(1, 4), factors).reshape(-1))
