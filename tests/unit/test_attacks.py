"""Attacks against fixtures that were computed with NumPy, and the clients that carry them out."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.attacks.alie import paper_z
from fedraa.attacks.attack import ATTACK, AttackPlan, make_attack_plan
from fedraa.attacks.backdoor import Backdoor
from fedraa.attacks.collusion import Collusion, CollusionAggregator
from fedraa.components.state import save_state
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.rng import generator
from fedraa.vectors.delta_view import DeltaView

HONEST = [(1.1, 0.9), (1.4, 1.1), (0.7, 1.2), (1.8, 1.6), (0.6, 0.2), (0.6, 1.0)]
N = np.nan


def rows_of(values: list[tuple[float, ...]]) -> list[np.ndarray]:
    return [np.array(row, np.float32) for row in values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alie(z=1.5)", (0.29441521, 0.30934813)),
        ("alie", (0.29441521, 0.30934813)),
        ("alie(z=0.0)", (1.03333333, 1.0)),
        ("ipm(epsilon=0.5)", (-0.51666667, -0.5)),
    ],
)
def test_colluding_attack_equals_the_fixture(text: str, expected: tuple[float, float]) -> None:
    np.testing.assert_allclose(ATTACK.resolve(text).collude(rows_of(HONEST), 7, 1), expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("clients", "attackers", "z"),
    [
        (50, 24, 1.42607687),
        (50, 12, 0.33603814),
        (25, 5, 0.25334710),
        (100, 20, 0.28584087),
        # The attack is the honest mean.
        (10, 2, 0.0),
    ],
)
def test_z_of_the_paper_equals_the_fixture(clients: int, attackers: int, z: float) -> None:
    assert paper_z(clients, attackers) == pytest.approx(z, abs=1e-8)
    attack = ATTACK.resolve("alie(z=None)").collude(rows_of(HONEST), clients, attackers)
    values = np.array(HONEST)
    np.testing.assert_allclose(attack, values.mean(0) - z * values.std(0, ddof=1), rtol=2e-6)


def test_statistics_of_submodels_run_over_the_clients_that_trained_a_coordinate() -> None:
    rows = rows_of([(1, 2, N, N), (3, 4, 6, N), (2, N, N, N)])
    expected = [2 - 1.5, 3 - 1.5 * np.sqrt(2), N, N]
    np.testing.assert_allclose(ATTACK.resolve("alie").collude(rows, 4, 1), expected, rtol=1e-6)


def test_attacker_keeps_its_values_where_fewer_than_two_clients_trained() -> None:
    plan = AttackPlan(ATTACK.resolve("ipm(epsilon=1.0)"), frozenset([3]), 0)
    collusion = Collusion(plan, 4, 4)
    for client, row in enumerate(rows_of([(1, 2, N, N), (3, 4, 6, N), (2, N, N, N)])):
        collusion.observe(client, row)
    own = np.array([9, N, 8, 7], np.float32)
    collusion.observe(3, own)
    again = Collusion(plan, 4, 4)
    again.restore(save_state(collusion))
    for one in (collusion, again):
        np.testing.assert_array_equal(one.forge(own, 4, 1), [-2, N, 8, 7])


@pytest.mark.parametrize("epsilon", ["1e20", "3e38"])
def test_colluding_attack_that_sends_too_large_values_is_refused(epsilon: str) -> None:
    collusion = Collusion(AttackPlan(ATTACK.resolve(f"ipm(epsilon={epsilon})"), frozenset([2]), 0), 2, 3)
    for client, row in enumerate(rows_of([(1, 2), (3, 4)])):
        collusion.observe(client, row)
    with refuses("attack", "IPM"):
        collusion.forge(np.zeros(2, np.float32), 3, 1)


def test_collusion_with_knowledge_own_uses_only_updates_of_attackers() -> None:
    plan = AttackPlan(ATTACK.resolve("alie(z=0.0, knowledge='own')"), frozenset([0, 1]), 0)
    collusion = Collusion(plan, 1, 4)
    for client, value in enumerate([1.0, 3.0, 50.0, 60.0]):
        collusion.observe(client, np.array([value], np.float32))
    assert collusion.forge(np.zeros(1, np.float32), 4, 2).tolist() == [2.0]


def test_fednova_divides_a_forged_delta_by_the_length_of_its_own_task() -> None:
    run: Any = SimpleNamespace(traced=SimpleNamespace(size=2), clients=3)
    plan = AttackPlan(ATTACK.resolve("ipm(epsilon=1.0)"), frozenset([1]), 0)
    aggregator = CollusionAggregator(AGGREGATOR.resolve("fednova"), run, Collusion(plan, 2, 3))
    lengths = np.array([2.0, 5.0, 4.0])
    for client, delta in enumerate([(1, 2), (9, 9), (3, 4)]):
        view = DeltaView(slice(None), np.array(delta, np.float32))
        aggregator.add(ClientDelta(client, view, 1.0, 0.1, path_length=float(lengths[client])))
    delta, _ = aggregator.finish(RoundTotals(np.full(2, 3, np.int32), 0.1))
    # The attacker sends the negative mean of the honest deltas.
    sent = np.array([(1, 2), (-2, -3), (3, 4)])
    np.testing.assert_allclose(delta, lengths.mean() * (sent / lengths[:, None]).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "expected"), [("sign-flip", [-1, 2]), ("sign-flip(scale=3)", [-3, 6]), ("scaling", [10, -20])]
)
def test_delta_is_flipped_or_scaled(text: str, expected: list[float]) -> None:
    delta = np.array([1, -2], np.float32)
    assert ATTACK.resolve(text).forge(delta, generator(0, "attack")).tolist() == expected


def test_noise_has_the_standard_deviation_and_depends_on_client_and_turn() -> None:
    plan = AttackPlan(ATTACK.resolve("gaussian(std=0.5)"), frozenset([0]), 3)
    delta = np.ones(100_000, np.float32)
    noise = plan.forge(0, 2, delta)
    assert noise.dtype == np.float32
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.01
    assert plan.forge(0, 2, delta).tobytes() == noise.tobytes()
    assert plan.forge(0, 3, delta).tobytes() != noise.tobytes()


def test_labels_are_flipped_in_copies() -> None:
    labels = np.array([0, 1, 2, 9])
    x = np.zeros((4, 2), np.float32)
    flip, pair = ATTACK.resolve("label-flip"), ATTACK.resolve("label-flip(source=1, target=7)")
    for attack in (flip, pair):
        attack.start(10, torch.zeros(2, 2))
    assert flip.poison(x, labels, generator(0, "poison"))[1].tolist() == [9, 8, 7, 0]
    assert pair.poison(x, labels, generator(0, "poison"))[1].tolist() == [0, 7, 2, 9]
    assert labels.tolist() == [0, 1, 2, 9]


@pytest.mark.parametrize("shape", [(1, 4, 4), (16,)])
def test_backdoor_stamps_a_share_of_the_samples(shape: tuple[int, ...]) -> None:
    backdoor = Backdoor(target=2, share=0.5, size=2)
    backdoor.start(10, torch.full((3, *shape), 5.0))
    x, y = np.zeros((8, *shape), np.float32), np.arange(8)
    inputs, labels = backdoor.poison(x, y, generator(0, "poison", 1))
    stamped = inputs.reshape(8, -1).sum(axis=1) > 0
    assert stamped.sum() == 4
    assert (labels[stamped] == 2).all()
    assert (labels[~stamped] == y[~stamped]).all()
    # The trigger is four values of 5; as an image it is the last square.
    assert (inputs[stamped].reshape(4, -1).sum(axis=1) == 20).all()
    assert (inputs[stamped][..., -1] == 5).any()
    assert not x.any()
    if len(shape) == 3:
        assert (inputs[stamped][:, 0, 2:, 2:] == 5).all()


def test_seed_draws_the_share_of_attackers() -> None:
    plans = [make_attack_plan("alie", 0.2, clients=50, seed=seed) for seed in (1, 1, 2)]
    drawn = [plan.attackers for plan in plans if plan is not None]
    assert [len(attackers) for attackers in drawn] == [10, 10, 10]
    assert drawn[0] == drawn[1] != drawn[2]
    assert make_attack_plan(None, 0.2, clients=50, seed=1) is None


@pytest.mark.parametrize("share", [0.01, 1.0])
def test_share_that_makes_no_client_or_all_clients_attackers_is_refused(share: float) -> None:
    with refuses("attackers", got=share):
        make_attack_plan("alie", share, clients=10, seed=0)


def test_backdoor_refuses_an_unknown_label_and_integer_inputs() -> None:
    with refuses("attack.target", got=10):
        Backdoor(target=10).start(10, torch.zeros(2, 4))
    with refuses("attack"):
        Backdoor().start(10, torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_attackers_without_an_attack_are_refused(share: float) -> None:
    """A share of attackers without an attack is an error, even if it equals the default."""
    with refuses("attackers", got=share):
        build_run(Experiment(method="fedavg", engine="local", attackers=share))
