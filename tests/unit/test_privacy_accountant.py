"""Epsilon and noise of private runs: numbers of other libraries or by hand, refused values, and the plan."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from private_rounds import noisy_sum
from refusals import refuses

from fedraa import Experiment
from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.cli.plan import server_bytes
from fedraa.cli.plan_privacy import privacy_lines
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import Need
from fedraa.ledger.participation import PARTICIPATION, draw_cohort
from fedraa.privacy.accountant import (
    PrivacyTerms,
    find_gaussian_noise,
    find_poisson_noise,
    gaussian_epsilon,
    group_updates,
    largest_squared,
    poisson_epsilon,
)
from fedraa.privacy.noisy_sum import NOISE_BYTES
from fedraa.privacy.private_mean import PrivateMean
from fedraa.settings.resolve import resolve_method
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.run_length import RunLengthArray

DELTA = 1e-5
POISSON = {"method": "fedavg", "weights": "uniform", "participation": "poisson:0.3"}


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")


@pytest.mark.parametrize(
    ("counts", "expected"), [((1, 1, 1, 1), 1.99309140), ((2, 0, 1, 0), 2.25814536), ((0, 1, 0, 0), 0.92634150)]
)
def test_epsilon_of_buffers_follows_from_participation(library: Any, counts: tuple[int, ...], expected: float) -> None:
    releases = [[5] * count for count in counts]
    assert gaussian_epsilon(4.0, largest_squared(releases), DELTA) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("count", "expected"), [(1, 0.926342), (5, 2.258145), (10, 3.341409), (50, 8.595866)])
def test_epsilon_grows_with_single_participations(library: Any, count: int, expected: float) -> None:
    assert gaussian_epsilon(4.0, count, DELTA) == pytest.approx(expected, abs=2e-6)


def test_largest_squared_is_the_sum_of_squares_of_the_most_frequent_client() -> None:
    assert largest_squared([[0, 1, 1], [1, 2, 2]]) == 4 + 1
    assert largest_squared([]) == 0


def test_group_updates_leaves_out_the_open_buffer() -> None:
    events = [{"kind": "commit", "client": client} for client in (0, 1, 1, 2, 3)]
    assert group_updates(events, 2) == [[0, 1], [1, 2]]
    rounds = [events[0], {"kind": "round"}, {"kind": "round"}, events[1]]
    assert group_updates(rounds, None) == [[0], []]


@pytest.mark.parametrize("noise", [1e-300, 1e-9])
def test_epsilon_of_almost_no_noise_is_infinite(library: Any, noise: float) -> None:
    events = [{"kind": "commit", "client": 0}, {"kind": "round"}]
    for sampling in (None, 0.3):
        assert PrivacyTerms(noise, DELTA, sampling=sampling).measure_loss(events)["epsilon"] is None


def test_epsilon_of_little_noise_is_computed_without_sampling(library: Any) -> None:
    """The privacy loss distribution of noise 0.001 needs 38 GiB."""
    assert poisson_epsilon(0.001, 0.3, 2, DELTA) == gaussian_epsilon(0.001, 2, DELTA)
    assert poisson_epsilon(0.2, 0.3, 2, DELTA) < gaussian_epsilon(0.2, 2, DELTA)


@pytest.mark.parametrize("epsilon", [1e4, 1e9])
def test_noise_of_poisson_rounds_stays_within_a_large_epsilon(library: Any, epsilon: float) -> None:
    noise = find_poisson_noise(epsilon, 0.3, 2, DELTA)
    assert poisson_epsilon(noise, 0.3, 2, DELTA) <= epsilon * 1.02


@pytest.mark.parametrize(
    ("noise", "share", "rounds", "expected"),
    [(1.0, 0.01, 1000, 1.8282436), (1.0, 0.1, 100, 7.0466029), (0.8, 0.1, 100, 10.9763782)],
)
def test_epsilon_of_poisson_rounds_equals_the_reference(
    library: Any, noise: float, share: float, rounds: int, expected: float
) -> None:
    assert poisson_epsilon(noise, share, rounds, DELTA) == pytest.approx(expected, abs=1e-6)


def test_epsilon_of_rounds_with_all_clients_equals_the_reference(library: Any) -> None:
    assert gaussian_epsilon(2.0, 50, DELTA) == pytest.approx(20.6755081, abs=1e-3)


def test_noise_for_an_epsilon_equals_the_reference(library: Any) -> None:
    assert find_poisson_noise(8.0, 0.1, 100, DELTA) == pytest.approx(0.935925, abs=2e-3)
    assert find_gaussian_noise(1.0, 4, DELTA) == pytest.approx(2 * 3.73063163, abs=1e-6)
    assert gaussian_epsilon(find_gaussian_noise(3.0, 7, DELTA), 7, DELTA) == pytest.approx(3.0, abs=1e-6)


def test_44_participations_stay_within_epsilon_8(library: Any) -> None:
    assert gaussian_epsilon(4.0, 44, DELTA) == pytest.approx(7.955, abs=1e-3)
    assert gaussian_epsilon(4.0, 45, DELTA) == pytest.approx(8.064, abs=1e-3)


def test_fixed_cohort_gets_no_amplification(library: Any) -> None:
    """Ten of 100 clients in each of 100 rounds: RDP has 2.5806 for Poisson cohorts, and 5.379 for fixed ones."""
    participation = PARTICIPATION.resolve("sample:10")
    events: list[dict[str, Any]] = []
    for round in range(100):
        events += [{"kind": "commit", "client": client} for client in draw_cohort(participation, 100, round, 0)]
        events.append({"kind": "round"})
    fixed = PrivacyTerms(2.0, DELTA).measure_loss(events)["epsilon"]
    assert poisson_epsilon(2.0, 0.1, 100, DELTA) < 2.5806
    assert fixed > 5.379


def test_local_privacy_counts_every_task(library: Any) -> None:
    events = [{"kind": "dispatch", "client": client} for client in (0, 1, 1, 1)]
    loss = PrivacyTerms(4.0, DELTA, local=True).measure_loss(events)
    assert loss["releases"] == 3
    assert loss["epsilon"] == pytest.approx(gaussian_epsilon(4.0, 3, DELTA))


def test_poisson_cohort_may_be_empty() -> None:
    participation = PARTICIPATION.resolve("poisson:0.1")
    sizes = [len(draw_cohort(participation, 5, round, 0)) for round in range(400)]
    assert sizes.count(0) / 400 == pytest.approx(0.9**5, abs=0.1)
    assert np.mean(sizes) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("weights", {"method": "fedavg"}),
        ("privacy", {"method": "scaffold", "weights": "uniform"}),
        ("privacy", {"method": "feddyn"}),
        ("update.owned_head", {"method": "heterofl", "weights": "uniform"}),
        ("privacy", {"method": "ca2fl"}),
        ("aggregator", {"method": "fedavg", "weights": "uniform", "aggregator": "median"}),
        ("aggregator", {"method": "fedbuff", "aggregator": "median"}),
        ("max_update_norm", {"method": "fedasync", "max_update_norm": "auto"}),
        ("server_shards", {"method": "fed-raa", "engine": "ray", "server_shards": 2}),
        ("compress", {"method": "fedasync", "privacy": "local", "compress": "topk:0.1"}),
        ("compress", {"method": "fedprox", "privacy": "local", "compress": "8bit"}),
        ("compress", {"method": "signsgd", "privacy": "local"}),
        ("privacy.noise", {"method": "fedasync", "privacy": "central(noise=0)"}),
        ("lr_schedule", POISSON | {"lr_schedule": "cosine:9@passes"}),
        ("lr_schedule", POISSON | {"lr_schedule": "cosine:9@time"}),
        ("participation", POISSON | {"method": "fedcm"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["method"],
)
def test_fields_that_break_the_privacy_guarantee_are_refused(field: str, values: dict[str, Any]) -> None:
    experiment = Experiment(**{"engine": "local", "privacy": "central", **values})
    with refuses(field):
        resolve_method(experiment)


def test_delta_without_privacy_is_refused() -> None:
    with refuses("privacy_delta"):
        Experiment(privacy_delta=1e-5)


@pytest.mark.parametrize(
    ("privacy", "epsilon"), [(None, 8.0), ("central", 0.0), ("central", -1.0), ("central", float("inf"))]
)
def test_impossible_epsilon_is_refused(privacy: str | None, epsilon: float, library: Any) -> None:
    spec = build_run(Experiment(engine="local", method="fedasync", clients=4, privacy=privacy))
    with refuses("epsilon", got=epsilon):
        privacy_lines(spec, epsilon)


@pytest.mark.parametrize(
    "values",
    [
        {"method": "fedavg", "weights": "uniform", "rounds": 3, "participation": "round-robin:2"},
        {"method": "fedavg", "weights": "uniform", "rounds": 3, "participation": "sample:2", "over_selection": 1.5},
        {"method": "fedbuff", "updates": 3, "concurrency": 2, "next_client": "round-robin"},
    ],
    ids=["rounds", "over-selection", "asynchronous"],
)
def test_plan_does_not_guess_the_clients_of_a_selection(values: dict[str, Any], library: Any) -> None:
    spec = build_run(Experiment(engine="local", clients=4, privacy="central", **values))
    assert len(privacy_lines(spec, None)) == 1
    with refuses("epsilon", got=8.0):
        privacy_lines(spec, 8.0)


def test_memory_covers_the_buffers_of_a_private_round() -> None:
    """The peak of a round as Python's allocator measures it, with the mean that PrivateMean replaces."""
    size, count = 300_000, 3
    sent, new = np.zeros(size, np.float32), np.ones(size, np.float32)
    tracemalloc.start()
    mean = PrivateMean(noisy_sum("central(noise=1.0, clip=1.0)", size, cohort=count), fixed=True).bind(size, count)
    for client in range(count):
        mean.add(ClientDelta(client, DeltaView(slice(None), new, sent), 1.0, 0.1))
    mean.finish(RoundTotals(RunLengthArray(np.zeros(1, np.int64), np.full(1, count, np.int32), size), 0.1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stated = NOISE_BYTES * size + CoverageMean().memory(size, count)
    assert 0.75 * stated < peak <= stated


def test_plan_and_memory_check_count_the_noise() -> None:
    fields: dict[str, Any] = {"engine": "local", "dataset": "digits", "weights": "uniform", "method": "fedavg"}
    plain = build_run(Experiment(**fields))
    private = build_run(Experiment(**fields, privacy="central(noise=1.0, clip=1.0)"))
    size = plain.params.size
    assert Need.of(private).server - Need.of(plain).server == 28 * size
    assert server_bytes(private) - server_bytes(plain) == 28 * size
    local = build_run(Experiment(**fields, privacy="local(noise=1.0, clip=1.0)"))
    assert Need.of(local).server == Need.of(plain).server
    assert Need.of(local).task >= 36 * size


def test_plan_counts_no_sampling_for_local_privacy(library: Any) -> None:
    """The server sees which clients send an update, so that Poisson rounds hide no client."""
    fields: dict[str, Any] = {"engine": "local", "dataset": "digits", "method": "fedavg", "clients": 8, "rounds": 9}
    spec = build_run(Experiment(**fields, privacy="local(noise=4.0)", participation="poisson:0.5", privacy_delta=DELTA))
    rounds = [draw_cohort(PARTICIPATION.resolve("poisson:0.5"), 8, number, 0) for number in range(9)]
    tasks = max(sum(client in cohort for cohort in rounds) for client in range(8))
    assert f"epsilon {gaussian_epsilon(4.0, tasks, DELTA):.4g}" in privacy_lines(spec, None)[0]


@pytest.mark.parametrize(
    ("fields", "squared"),
    [
        ({"method": "fedavg", "weights": "uniform", "privacy": "central(noise=4.0)"}, 3),
        ({"method": "fedavg", "weights": "uniform", "privacy": "central(noise=4.0)", "time": 5.0}, 3),
        ({"method": "fedavg", "privacy": "local(noise=4.0)", "participation": "round-robin:2"}, 3),
        ({"method": "fed-raa", "privacy": "central(noise=4.0)", "clock": "wall"}, 3),
        ({"method": "fedbuff", "privacy": "central(noise=4.0)", "buffer_size": 2}, 5),
        ({"method": "fedbuff", "privacy": "central(noise=4.0)", "buffer_size": 10}, 9),
        ({"method": "fedavg", "weights": "uniform", "privacy": "central(noise=4.0)", "rounds": 2}, 2),
        ({"method": "fedbuff", "privacy": "central(noise=4.0)", "buffer_size": 2, "updates": 1}, 4),
    ],
    ids=str,
)
def test_plan_bounds_epsilon_by_the_participations(library: Any, fields: dict[str, Any], squared: int) -> None:
    """Three updates, of which up to K are in one buffer of K, and at most as many as the run has."""
    common: dict[str, Any] = {"engine": "local", "dataset": "digits", "clients": 8, "max_participations": 3}
    spec = build_run(Experiment(**common, **fields, privacy_delta=DELTA))
    assert f"epsilon {gaussian_epsilon(4.0, squared, DELTA):.4g}" in privacy_lines(spec, None)[0]
    assert f"noise {find_gaussian_noise(2.0, squared, DELTA):.4g}" in privacy_lines(spec, 2.0)[1]
