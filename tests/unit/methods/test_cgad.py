"""CGAD: the weight of a staleness, and Adam's moments of scaled deltas, in independent NumPy."""

from math import exp

import numpy as np
import pytest
from played_rules import Played, random_arrivals, same

from fedraa.composition.registry import list_methods
from fedraa.methods.cgad import CorrectedAdam, CosineGate
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.staleness import STALENESS

CGAD = list_methods()["cgad"].update


def test_cosine_gate_falls_to_0_at_the_cutoff() -> None:
    gate = CosineGate(alpha=0.1, cutoff=8)
    weights = [gate(staleness) for staleness in (0, 1, 2, 4, 8, 20)]
    np.testing.assert_allclose(weights, (1, 0.870399, 0.698830, 0.335160, 0, 0), atol=1e-6)
    assert weights[-2:] == [0, 0]
    assert STALENESS.resolve("cosine-gate(alpha=0, cutoff=4)")(2) == pytest.approx(0.5)


def test_cgad_scales_a_delta_before_both_moments() -> None:
    played = Played(CGAD, 3, np.ones(5))
    theta, m, v = np.ones(5), np.zeros(5), np.zeros(5)
    for number, (client, gain, staleness) in enumerate(random_arrivals(40, 3), 1):
        played.take(client, gain, staleness)
        scaled = (1 + np.cos(np.pi * staleness / 8)) / 2 * exp(-0.1 * staleness) * np.array(gain)
        m = 0.9 * m + 0.1 * scaled
        v = 0.99 * v + 0.01 * scaled**2
        theta = theta + 1e-3 * m / (1 - 0.9**number) / (np.sqrt(v / (1 - 0.99**number)) + 1e-8)
    np.testing.assert_allclose(played.model.params, theta, rtol=0, atol=1e-6)


def test_cgad_does_not_depend_on_a_constant_staleness() -> None:
    aged = [(client, gain, 3) for client, gain, _ in random_arrivals(30, 3)]
    fresh = [(client, gain, 0) for client, gain, _ in aged]
    runs = [Played(CGAD, 3, np.ones(5)).all(arrivals).thetas for arrivals in (aged, fresh)]
    np.testing.assert_allclose(*runs, rtol=0, atol=1e-6)


def test_cgad_of_fresh_updates_is_adam() -> None:
    arrivals = [(client, gain, 0) for client, gain, _ in random_arrivals(30, 3)]
    same(CGAD, FedBuffRule(1, "constant", optimizer=CorrectedAdam()), arrivals)


def test_corrected_adam_counts_the_steps_of_each_coordinate() -> None:
    optimizer = CorrectedAdam(server_lr=0.1).bind(2)
    params = np.zeros(2, np.float32)
    for moved in ((True, False), (True, False), (True, True)):
        optimizer.step(params, np.array([3, -2], np.float32), np.array(moved))
    # Each step along a constant delta is server_lr.
    np.testing.assert_allclose(params, (0.3, -0.1), atol=1e-6)
    assert optimizer._steps.tolist() == [3, 1]
