"""Asynchronous rules of other papers against results by hand: deltas of two coordinates, theta from (1, 2)."""

import re
from copy import deepcopy
from math import sqrt
from typing import Any

import numpy as np
import pytest
from played_rules import FIRST, SECOND, START, THIRD, TRIPLE, Played, random_arrivals, same

from fedraa.composition.registry import list_methods
from fedraa.methods.ace import ACE
from fedraa.methods.area import Area
from fedraa.methods.asyncfeded import AsyncFedED
from fedraa.methods.ca2fl import CA2FL
from fedraa.methods.cgad import CorrectedAdam
from fedraa.methods.fadas import Fadas
from fedraa.methods.fedasmu import FedASMU
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.methods.fedgmr import FedGMR
from fedraa.methods.generalized_asyncsgd import RoutedSGD
from fedraa.methods.heloco import HeLoCo
from fedraa.methods.mr_asyncfl import ModelReplacement
from fedraa.methods.ringleader import Ringleader
from fedraa.methods.ringmaster import Ringmaster
from fedraa.methods.ringmaster_lmo import RingmasterLMO
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.optimizers import AmsGrad, Momentum, Sgd
from fedraa.server.staleness import DelayAdaptive
from fedraa.vectors.delta_view import DeltaView

METHODS = list_methods()

# FedBuff


def test_fedbuff_with_and_without_momentum_equals_the_steps_by_hand() -> None:
    Played(FedBuffRule(size=1)).all(TRIPLE).close((2, 2), (2.5, 2.5), (2.5, 1.345299))
    Played(FedBuffRule(size=1, optimizer=Momentum())).all(TRIPLE).close((2, 2), (3.4, 2.5), (4.66, 1.795299))


def test_fedbuff_with_momentum_0_equals_fedbuff_without_an_optimizer() -> None:
    arrivals = random_arrivals(20, 3)
    ones, others = (
        Played(FedBuffRule(4, optimizer=optimizer), 3, np.ones(5)).all(arrivals)
        for optimizer in (Momentum(beta=0.0), None)
    )
    assert ones.thetas == others.thetas


def test_fedbuff_with_server_lr_7_equals_the_sum_of_ten_with_rate_point_7() -> None:
    """The authors' code steps along the sum, u <- beta u + sum: lr .7 there at K = 10 equals server_lr 7."""
    arrivals = random_arrivals(30, 3)
    theta, u = np.ones(5), np.zeros(5)
    for flush in range(3):
        ten = arrivals[10 * flush : 10 * flush + 10]
        u = 0.9 * u + np.sum([np.array(gain) / sqrt(1 + stale) for _, gain, stale in ten], axis=0)
        theta = theta + 0.7 * u
    played = Played(FedBuffRule(10, optimizer=Momentum(server_lr=7.0, beta=0.9)), 3, np.ones(5)).all(arrivals)
    np.testing.assert_allclose(played.model.params, theta, rtol=1e-5)


def test_reported_weight_excludes_the_step_size_if_an_optimizer_steps() -> None:
    assert Played(FedBuffRule(2, server_lr=0.5)).take(0, FIRST, 3) == ApplyResult(0.125, False)
    assert Played(FedBuffRule(2, optimizer="adam")).take(0, FIRST, 3) == ApplyResult(0.5, False)


def test_fedbuff_has_no_client_momentum_and_no_optimizer_by_default() -> None:
    assert METHODS["fedbuff"].local.momentum == 0
    assert METHODS["fedbuff"].update == FedBuffRule()


# CA2FL and ACE

CACHED = [(0, FIRST, 0), (0, SECOND, 0), (1, THIRD, 0)]


def test_ca2fl_with_buffer_1_equals_the_steps_by_hand() -> None:
    played = Played(CA2FL(1))
    means = []
    for client, gain, _ in CACHED:
        played.take(client, gain)
        means.append(played.rule._cache.mean.tolist())
    played.close((2, 2), (2, 2.5), (2.25, 0.75))
    assert means == [[0.5, 0], [0.25, 0.25], [0.25, -0.75]]


def test_ca2fl_with_buffer_2_equals_the_steps_by_hand() -> None:
    played = Played(CA2FL(2)).all([(0, FIRST, 0), (1, THIRD, 0), (0, SECOND, 0), (1, (0.0, -1.0), 0)])
    played.close(START, (1.5, 1), (1.5, 1), (1.75, 0.75))
    assert [taken.new_version for taken in played.taken] == [False, True, False, True]


def test_ca2fl_compares_updates_with_the_cache_before_the_buffer() -> None:
    """The result is (1.5, 1.5); a rule that overwrites the cache immediately gives (1.166667, 1.5)."""
    Played(CA2FL(3)).all(CACHED).close(START, START, (1.5, 1.5))


def test_ca2fl_without_cached_updates_equals_fedbuff_of_weight_1() -> None:
    """h stays 0 while no client reports twice across buffers: in the first buffer, and with new clients only."""
    arrivals = [(client, gain, 0) for client, (_, gain, _) in enumerate(random_arrivals(4, 4))]
    same(CA2FL(4), FedBuffRule(4, "constant"), arrivals, clients=4)


def test_ca2fl_with_one_update_per_client_equals_uniform_fedavg() -> None:
    """v = mean g for any h."""
    gains = [gain for _, gain, _ in random_arrivals(12, 3)]
    arrivals = [(k % 3, gain, 0) for k, gain in enumerate(gains)]
    same(CA2FL(3, server_lr=0.5), FedBuffRule(3, "constant", server_lr=0.5), arrivals)


def test_ca2fl_with_one_client_equals_fedbuff() -> None:
    """v = h + mean(g - h), also with several updates of one client in a buffer."""
    same(CA2FL(2), FedBuffRule(2, "constant"), random_arrivals(9, 1), clients=1)


def test_ace_waits_for_all_clients_and_then_steps_at_every_update() -> None:
    played = Played(ACE()).all([*CACHED, (0, (0.5, 0.0), 0)])
    played.close(START, START, (1.25, 1.25), (1.5, 0.25))
    assert [taken.new_version for taken in played.taken] == [False, False, True, True]


def test_ace_with_one_client_equals_fedbuff_with_buffer_1() -> None:
    same(ACE(), FedBuffRule(1, "constant"), random_arrivals(9, 1), clients=1)


@pytest.mark.parametrize("rule", [ACE(), CA2FL(1), CA2FL(4)])
def test_mean_of_a_cache_equals_the_mean_of_its_rows(rule: AsyncRule) -> None:
    played = Played(rule, 7, np.ones(5)).all(random_arrivals(2000, 7))
    cache = played.rule._cache
    np.testing.assert_allclose(
        cache.mean,
        np.sum([cache.rows[client] for client in cache.rows], axis=0, dtype=np.float64) / 7,
        rtol=0,
        atol=1e-9,
    )


def test_cache_row_is_created_when_its_client_first_reports() -> None:
    played = Played(ACE(), clients=1000).all(TRIPLE)
    assert list(played.rule._cache.rows) == [0, 1]
    assert ACE().memory(100, 10) == 4 * 100 * 10 + 8 * 100


# Ringmaster, delay-adaptive


@pytest.mark.parametrize(("limit", "last", "steps"), [(2, (2.5, 2.5), 2), (3, (2.5, 0.5), 3)])
def test_ringmaster_ignores_updates_from_the_delay_limit_on(limit: int, last: tuple[float, float], steps: int) -> None:
    played = Played(Ringmaster(limit)).all(TRIPLE)
    played.close((2, 2), (2.5, 2.5), last)
    assert sum(taken.new_version for taken in played.taken) == steps
    assert played.taken[-1] == (ApplyResult(0.0, False) if steps == 2 else ApplyResult(1.0))


def test_ringmaster_with_a_huge_limit_equals_fedbuff_with_buffer_1() -> None:
    same(Ringmaster(10**9, server_lr=0.3), FedBuffRule(1, "constant", server_lr=0.3), random_arrivals(30, 3))


def test_delay_limit_of_ringmaster_defaults_to_the_number_of_clients() -> None:
    """The bound is strict: with all N clients at work the mean staleness is N - 1."""
    played = Played(Ringmaster(), clients=4).all([(0, FIRST, 3), (0, FIRST, 4)])
    assert [taken.new_version for taken in played.taken] == [True, False]


def test_ringmaster_with_limit_1_and_one_client_equals_sgd() -> None:
    same(Ringmaster(1), FedBuffRule(1, "constant"), [(0, gain, 0) for _, gain, _ in random_arrivals(9, 1)], clients=1)


def test_delay_adaptive_weight_falls_if_staleness_exceeds_the_clients() -> None:
    """N / max(N, k): 1 up to k = N."""
    assert [DelayAdaptive(4)(k) for k in (0, 4, 5, 16)] == [1, 1, 0.8, 0.25]
    # N is the number of clients of the run.
    played = Played(METHODS["delay-adaptive"].update, clients=2)
    assert [played.take(0, FIRST, stale).weight for stale in (0, 2, 4)] == [1, 1, 0.5]
    played.close((2, 2), (3, 2), (3.5, 2))


# FADAS


def test_fadas_equals_amsgrad_steps_by_hand() -> None:
    played = Played(Fadas(1, optimizer=AmsGrad(server_lr=0.1))).all(TRIPLE)
    played.close((1.1, 2), (1.225724, 2.1), (1.282299, 2.062396))
    optimizer = played.rule._stepping
    np.testing.assert_allclose(optimizer._m, (0.126, -0.155), atol=1e-7)
    np.testing.assert_allclose(optimizer._max, (0.0124, 0.042475), atol=1e-7)


def test_fadas_with_bias_correction_equals_the_steps_by_hand() -> None:
    played = Played(Fadas(1, optimizer=AmsGrad(server_lr=0.1, corrected=True))).all(TRIPLE)
    played.close((1.1, 2), (1.193345, 2.074246), (1.229324, 2.050332))


def test_fadas_divides_the_step_by_the_largest_staleness_of_the_buffer() -> None:
    """With staleness 0, 4, 1 the step is divided by four; the next buffer, all at the limit, has the full step."""
    arrivals = [(0, (1.0, 1.0), stale) for stale in (0, 4, 1, 1, 1, 0)]
    cut, plain = (Played(Fadas(3, delay_limit=limit)).all(arrivals) for limit in (1, 10**9))
    first = np.array(cut.thetas[2]) - START
    np.testing.assert_allclose(first, (np.array(plain.thetas[2]) - START) / 4, rtol=1e-3)
    np.testing.assert_allclose(
        np.subtract(cut.thetas[5], cut.thetas[2]), np.subtract(plain.thetas[5], plain.thetas[2]), rtol=1e-3
    )


def test_fadas_without_a_limit_equals_fedbuff_with_amsgrad() -> None:
    same(Fadas(3, delay_limit=10**9), FedBuffRule(3, "constant", optimizer="amsgrad"), random_arrivals(12, 3))


def test_fadas_with_fresh_updates_of_all_clients_equals_rounds_of_amsgrad() -> None:
    """A buffer with one update of every client equals a round: AMSGrad's step along the mean, in NumPy."""
    gains = np.random.default_rng(1).standard_normal((4, 3, 5))
    theta, m, v, top = np.ones(5), np.zeros(5), np.zeros(5), np.zeros(5)
    for each in gains.mean(axis=1):
        m, v = 0.9 * m + 0.1 * each, 0.99 * v + 0.01 * each**2
        top = np.maximum(top, v)
        theta = theta + 0.01 * m / (np.sqrt(top) + 1e-8)
    arrivals = [(k % 3, tuple(gain), 0) for k, gain in enumerate(gains.reshape(-1, 5).tolist())]
    played = Played(Fadas(3, optimizer=AmsGrad(server_lr=0.01)), 3, np.ones(5)).all(arrivals)
    np.testing.assert_allclose(played.model.params, theta, rtol=1e-5)


def test_fadas_has_the_values_of_its_authors() -> None:
    update = METHODS["fadas"].update
    assert isinstance(update, Fadas)
    assert (update.size, update.delay_limit) == (5, 1)
    assert update.optimizer == AmsGrad(server_lr=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-8, corrected=False)
    assert METHODS["fadas"].local.weight_decay == 1e-4


# AsyncFedED


def test_asyncfeded_equals_the_steps_by_hand() -> None:
    """r = 0, 0, |(1.5, .5)| / 2 = .790569; the third client received theta_0."""
    played = Played(AsyncFedED())
    sent = [START, (2.0, 2.0), START]
    for (client, gain, stale), there in zip(TRIPLE, sent, strict=True):
        played.take(client, gain, stale, there)
    played.close((2, 2), (2.5, 2.5), (2.5, 1.383037))
    np.testing.assert_allclose([taken.weight for taken in played.taken], (1, 1, 0.558482), atol=1e-6)


def test_asyncfeded_gives_an_empty_update_the_weight_0() -> None:
    played = Played(AsyncFedED())
    assert played.take(0, (0.0, 0.0)).weight == 0
    played.close(START)


# Ringleader


def test_ringleader_equals_the_steps_by_hand() -> None:
    played = Played(Ringleader()).all(
        [(0, FIRST, 0), (0, SECOND, 0), (1, THIRD, 0), (1, (0.0, -1.0), 0), (0, (0.9, 0.4), 0)]
    )
    played.close(START, START, (1.375, 1.125), (1.375, 1.125), (1.775, 0.275))
    assert [taken[1:3] for taken in played.taken] == [
        (False, True),
        (False, True),
        (True, False),
        (False, True),
        (True, False),
    ]
    assert played.rule._todo == []
    table = played.rule._now
    assert {client: table.rows[client].tolist() for client in table.rows} == {1: [0, -1]}
    assert table.counts == {1: 1}
    assert not list(played.rule._next.rows)


def test_ringleader_with_one_client_steps_at_every_update() -> None:
    same(Ringleader(), FedBuffRule(1, "constant"), random_arrivals(9, 1), clients=1)


def test_every_client_has_the_same_weight_in_a_step_of_ringleader() -> None:
    """v = 1/N sum_i G_i / b_i, updated at each arrival, equals the value computed from the rows."""
    clients = 6
    played = Played(Ringleader(), clients, np.ones(5))
    for client, gain, _ in random_arrivals(600, clients):
        before = played.model.params.copy()
        table = deepcopy(played.rule._now)
        filling = not played.rule._todo
        if filling or client in played.rule._todo:
            table.add(client, DeltaView(slice(None), np.array(gain, np.float32)))
        if played.take(client, gain).new_version:
            means = [table.rows[n] / table.counts[n] for n in range(clients)]
            np.testing.assert_allclose(played.model.params - before, np.mean(means, axis=0), atol=1e-5)
        else:
            assert (played.model.params == before).all()


# Clients that leave, and buffers


def test_ringleader_and_ace_do_not_wait_for_a_client_that_left() -> None:
    """The mean is still over all N = 3 clients; what the client has sent before counts until the end of the round."""
    played = Played(Ringleader(), clients=3).all([(0, FIRST, 0), (1, SECOND, 0), (2, THIRD, 0)])
    played.rule.leave(1)
    played.all([(0, FIRST, 0), (2, (3.0, 0.0), 0), (0, (0.0, 3.0), 0)])
    played.close(START, START, (1.5, 1.5), (2, 1), (2, 1), (3, 2))
    played = Played(ACE(), clients=3).all([(0, FIRST, 0), (1, THIRD, 0)])
    played.rule.leave(2)
    played.take(0, SECOND)
    played.close(START, START, (1 + 0.5 / 3, 2 - 1.5 / 3))


def test_robust_buffer_steps_by_the_mean_weight_of_its_updates() -> None:
    """The staleness 0 and 3 have the weights 1 and 1/2. The median of two is their mean."""
    rule = FedBuffRule(2, aggregator="median(min_coverage=1)")
    played = Played(rule).all([(0, FIRST, 0), (1, (3.0, 2.0), 3), (0, (2.0, 2.0), 0), (1, (2.0, 2.0), 0)])
    played.close(START, (2.5, 2.75), (2.5, 2.75), (4.5, 4.75))


def test_robust_buffer_is_full_when_all_remaining_clients_reported() -> None:
    played = Played(FedBuffRule(3, "constant", aggregator="median(min_coverage=1)"), clients=3).all([(0, FIRST, 0)])
    played.rule.leave(2)
    played.take(1, (3.0, 2.0))
    played.close(START, (3, 3))


def test_server_momentum_moves_only_the_coordinates_of_its_buffer() -> None:
    model = AsyncModel(np.zeros(2, np.float32), 2, 1)
    rule = FedBuffRule(1, "constant", optimizer=Momentum(beta=0.5)).bind(model)
    for where in (0, 1, 0):
        new = np.ones(1, np.float32)
        rule.apply_update(ClientUpdate(0, 0, np.array([where]), new, np.zeros_like(new), 0, 10, 1.0), model)
    # The first coordinate moves by 1 and by 1 + 0.5.
    np.testing.assert_allclose(model.params, [2.5, 1])


# All rules

RULES = [
    FedBuffRule(3, optimizer=Momentum()),
    CA2FL(3),
    ACE(),
    Area(3),
    ModelReplacement(),
    HeLoCo(),
    Ringmaster(3),
    RingmasterLMO(2),
    FedBuffRule(1, "cosine-gate", optimizer=CorrectedAdam()),
    FedASMU(),
    RoutedSGD(),
    Fadas(3),
    AsyncFedED(),
    Ringleader(),
    FedGMR(),
    FedBuffRule(1, "delay-adaptive"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_coordinates_that_no_client_trained_do_not_change(rule: AsyncRule) -> None:
    model = AsyncModel(np.ones(6, np.float32), 3, 1)
    own = rule.bind(model)
    where = np.array([1, 4])
    for k in range(12):
        new = np.random.default_rng(k).standard_normal(2).astype(np.float32)
        own.apply_update(ClientUpdate(k % 3, 0, where, new, np.zeros(2, np.float32), 0, 10, 1.0), model)
    assert (model.params[[0, 2, 3, 5]] == 1).all()
    assert (model.params[where] != 1).all()


@pytest.mark.parametrize(
    ("text", "field", "name"),
    [
        ("buffer(size=0)", "async_rule.size", "0"),
        ("ca2fl(size=0)", "async_rule.size", "0"),
        ("ringmaster(delay_limit=0)", "async_rule.delay_limit", "0"),
        ("fadas(delay_limit=0)", "async_rule.delay_limit", "0"),
        ("fadas(optimizer=None)", "optimizer", "amsgrad"),
        ("asyncfeded(epsilon=0)", "async_rule.epsilon", "0"),
        ("ace(size=3)", "async_rule", "size"),
        ("buffer(optimizer='amsgrd')", "server_optimizer", "did you mean amsgrad?"),
    ],
)
def test_error_about_a_wrong_value_of_a_rule_names_the_field(text: str, field: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: .*{re.escape(name)}"):
        ASYNC_RULE.resolve(text)


def test_server_lr_is_passed_to_the_optimizer_if_a_rule_has_one() -> None:
    method: Any = METHODS["fedbuff"]
    assert method.replace(server_lr=3.0).update == FedBuffRule(server_lr=3.0)
    assert method.replace(server_lr=3.0, server_optimizer="sgd").update == FedBuffRule(optimizer=Sgd(3.0))
    assert METHODS["fadas"].replace(server_lr=0.5, **{"update.delay_limit": 7}).update == Fadas(
        optimizer=AmsGrad(server_lr=0.5), delay_limit=7
    )
