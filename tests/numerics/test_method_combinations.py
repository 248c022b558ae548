"""Combinations of two methods: those that run, those that are refused, and the clients of their rounds."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy_mlp import Array, loss_gradient, sgd
from refusals import refuses
from tiny import CLIENTS, LR, WIDTHS, Stepped, close, minibatches, spec, start, steps

from fedraa import Experiment
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.composition.registry import find_method, list_methods
from fedraa.ledger.participation import PARTICIPATION, draw_cohort
from fedraa.server.round_update import Mean
from fedraa.settings.resolve import resolve_method
from fedraa.submodels.policies.slices import Full

METHODS = list_methods()


@pytest.mark.parametrize("server", ["fedavg", "fedprox", "scaffold", "fedadam"])
@pytest.mark.parametrize("submodel", ["ist", "oap", "prunefl", "fedrolex"])
def test_combinations_of_subdismo_table_1_compose_and_run(submodel: str, server: str) -> None:
    """A combination a+b has the submodels and the coverage of a, and the local training and the server step of b."""
    combined, base, other = find_method(f"{submodel}+{server}"), METHODS[submodel], METHODS[server]
    assert isinstance(combined.update, Mean)
    assert isinstance(base.update, Mean)
    assert isinstance(other.update, Mean)
    assert (combined.submodel, combined.schedule) == (base.submodel, base.schedule)
    assert (combined.update.aggregator, combined.update.owned_head) == (base.update.aggregator, base.update.owned_head)
    assert (combined.update.optimizer, combined.update.auxiliary) == (other.update.optimizer, other.update.auxiliary)
    assert (combined.local.prox_mu, combined.local.control) == (other.local.prox_mu, other.local.control)
    assert (combined.local.squares, combined.local.label_masked) == (base.local.squares, base.local.label_masked)
    stepped = Stepped(spec(f"{submodel}+{server}"))
    before = stepped.server.params.copy()
    for _ in range(2):
        stepped.round()
    assert np.isfinite(stepped.server.params).all()
    assert (stepped.server.params != before).any()


@pytest.mark.parametrize("name", ["fedasync+ditto", "fed-raa+apfl", "heterofl-async+fedprox"])
def test_asynchronous_combination_has_the_server_of_a_and_the_training_of_b(name: str) -> None:
    combined = find_method(name)
    base, other = (METHODS[part] for part in name.split("+"))
    assert (combined.submodel, combined.update, combined.schedule) == (base.submodel, base.update, base.schedule)
    assert (combined.local.algorithm, combined.local.prox_mu) == (other.local.algorithm, other.local.prox_mu)
    assert (combined.local.momentum, combined.local.label_masked) == (other.local.momentum, base.local.label_masked)
    assert combined.paper_settings is None


# Two clients train a quarter and one trains a half. No client trains the other half.
OAP = {"capacities": (0.25, 0.5)}


def test_scaffold_on_masks_follows_the_formula() -> None:
    """c and c_i have all coordinates, but a client uses and updates only the coordinates that it trains.

    A coordinate of theta moves by the mean over the clients that trained it, and of c by their sum divided by all N.
    """
    run = spec("oap+scaffold", **OAP)
    stepped, theta = Stepped(run), start(run)
    c, own = np.zeros(len(theta)), np.zeros((CLIENTS, len(theta)))
    uncovered = 0
    for turn in range(3):
        masks = {task.client: task.mask for task in stepped.round()}
        delta, change, cover = np.zeros(len(theta)), np.zeros(len(theta)), np.zeros(len(theta))
        for n, mask in masks.items():
            assert mask is not None
            y = sgd(theta, minibatches(run, n, turn), WIDTHS, lr=LR, mask=mask, transform=lambda g, d=c - own[n]: g + d)
            new = np.where(mask, own[n] - c + (theta - y) / (steps(run, n) * LR), own[n])
            delta += mask * (y - theta)
            cover += mask
            change += new - own[n]
            own[n] = new
        theta = theta + delta / np.maximum(cover, 1)
        c = c + change / CLIENTS
        uncovered += int((cover == 0).sum())
        close(stepped.server.params, theta)
    assert uncovered
    assert np.abs(c).max() > 0.01


def test_adam_skips_coordinates_that_no_client_trains() -> None:
    """Untrained coordinates keep their moments and their step count.

    Otherwise the momentum would change their weights.
    """
    run = spec("oap+fedadam", momentum=0.0, server_lr=0.05, **OAP)
    stepped, theta = Stepped(run), start(run)
    m, v = np.zeros(len(theta)), np.full(len(theta), 1e-6)
    skipped_after_a_step = 0
    for turn in range(3):
        masks = [task.mask for task in stepped.round()]
        new = [sgd(theta, minibatches(run, n, turn), WIDTHS, lr=LR, mask=mask) for n, mask in enumerate(masks)]
        cover = np.sum(masks, axis=0)
        delta = np.sum([mask * (w - theta) for mask, w in zip(masks, new, strict=True)], axis=0) / np.maximum(cover, 1)
        skipped_after_a_step += int(((cover == 0) & (m != 0)).sum())
        m = np.where(cover, 0.9 * m + 0.1 * delta, m)
        v = np.where(cover, 0.99 * v + 0.01 * delta**2, v)
        theta = np.where(cover, theta + 0.05 * m / (np.sqrt(v) + 1e-3), theta)
        close(stepped.server.params, theta)
    assert skipped_after_a_step or (cover == 0).any()


class Masked:
    """Rounds of a method on OAP's masks, which leave some coordinates without a client, in NumPy."""

    def __init__(self, method: str, **fields: Any) -> None:
        self.run = spec(f"oap+{method}", **OAP, **fields)
        self.stepped, self.theta = Stepped(self.run), start(self.run)
        self.turn = -1
        self.masks: list[npt.NDArray[np.bool_]] = []
        self.cover = np.zeros(len(self.theta), int)

    def round(self, transform: Any) -> list[Array]:
        """Train a round along `transform(n, gradient, w - m theta)`. Return w - m theta for each client n."""
        self.turn += 1
        self.masks = [task.mask for task in self.stepped.round() if task.mask is not None]
        self.cover = np.sum(self.masks, axis=0)
        deltas = []
        for n, mask in enumerate(self.masks):
            received = self.theta * mask
            w = received
            for x, y in minibatches(self.run, n, self.turn):
                w = w - LR * mask * transform(n, loss_gradient(w, x, y, WIDTHS, mask)[1], w - received)
            deltas.append(w - received)
        return deltas

    def mean(self, vectors: list[Array], weights: npt.ArrayLike = (1, 1, 1)) -> Array:
        """Return the weighted mean of each coordinate over the clients that trained it; 0 if there is none."""
        shares = np.asarray(weights)[:, None] * np.array(self.masks)
        return np.asarray((shares * vectors).sum(axis=0) / np.maximum(shares.sum(axis=0), 1e-9))


def test_fedcm_keeps_the_direction_of_coordinates_that_no_client_trains() -> None:
    system = Masked("fedcm")
    direction, kept = np.zeros(44), 0
    mean_steps = np.mean([steps(system.run, n) for n in range(CLIENTS)])
    for _ in range(4):
        delta = system.mean(system.round(lambda n, g, away, d=direction: 0.1 * g + 0.9 * d))
        kept += int(((system.cover == 0) & (direction != 0)).sum())
        direction = np.where(system.cover, -delta / (LR * mean_steps), direction)
        system.theta = system.theta + delta
        close(system.stepped.server.params, system.theta)
        close(system.stepped.server._auxiliary._momentum, direction)  # type: ignore[attr-defined]
    assert kept


def test_mimelite_keeps_the_momentum_of_coordinates_that_no_client_trains() -> None:
    """A client's full-batch gradient is at m theta. Only its trained coordinates count in the mean."""
    system = Masked("mimelite", weights="samples")
    momentum, kept = np.zeros(44), 0
    data = [system.run.data.client(n) for n in range(CLIENTS)]
    for _ in range(4):
        theta = system.theta
        deltas = system.round(lambda n, g, away, m=momentum: 0.1 * g + 0.9 * m)
        full = [loss_gradient(theta, *data[n], WIDTHS, mask)[1] for n, mask in enumerate(system.masks)]
        kept += int(((system.cover == 0) & (momentum != 0)).sum())
        fresh = 0.1 * system.mean(full, system.run.data.sizes) + 0.9 * momentum
        momentum = np.where(system.cover, fresh, momentum)
        system.theta = theta + system.mean(deltas, system.run.data.sizes)
        close(system.stepped.server.params, system.theta)
        close(system.stepped.server._auxiliary._momentum, momentum)  # type: ignore[attr-defined]
    assert kept


def test_feddyn_does_not_move_coordinates_that_no_client_trains() -> None:
    system = Masked("feddyn", prox_mu=0.3)
    drifts, h, kept = np.zeros((CLIENTS, 44)), np.zeros(44), 0
    for _ in range(4):
        deltas = system.round(lambda n, g, away, before=drifts: g - before[n] + 0.3 * away)
        drifts = drifts - 0.3 * np.array(deltas)
        h = h - np.sum(deltas, axis=0) / CLIENTS
        kept += int(((system.cover == 0) & (h != 0)).sum())
        system.theta = system.theta + np.where(system.cover, system.mean(deltas) - h, 0)
        close(system.stepped.server.params, system.theta)
    assert kept


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("name", "name"),
        ("fedprox+scaffold", "fedprox+scaffold"),
        ("oap+heterofl", "oap+heterofl"),
        ("oap+fedasync", "oap+fedasync"),
        ("fed-raa+scaffold", "fed-raa+scaffold"),
        ("fed-raa+fedadam", "fed-raa+fedadam"),
        ("fedasync+feddyn", "fedasync+feddyn"),
        ("fedasync+heterofl", "fedasync+heterofl"),
        ("fedasync+fed-raa", "fedasync+fed-raa"),
        ("feddyn-async+ditto", "feddyn-async+ditto"),
        ("ram-fed+scaffold", "ram-fed+scaffold"),
        ("oap+", ""),
        ("+scaffold", ""),
        ("ditto+fedasync", "ditto+fedasync"),
        ("oap+scaffold+fedadam", "oap+scaffold+fedadam"),
        ("oap+adam", "adam"),
    ],
)
def test_invalid_combination_is_refused(name: str, got: str) -> None:
    with refuses("method", got=got):
        resolve_method(Experiment(method=name))


@pytest.mark.parametrize("method", ["scaffold", "oap+scaffold"])
@pytest.mark.parametrize(
    "flags",
    [{"momentum": 0.5}, {"clip": 1.0}, {"compress": "topk:0.1"}],
)
def test_settings_that_break_the_control_variate_are_refused(method: str, flags: dict[str, Any]) -> None:
    """(theta - y) / (T eta_l) is the mean gradient only with plain SGD."""
    ((field, value),) = flags.items()
    with refuses(field, method, got=value):
        resolve_method(Experiment(method=method, **flags))
    resolve_method(
        Experiment(method=method, **dict.fromkeys(flags, 0.0) if "compress" not in flags else {"compress": "8bit"})
    )


def test_local_momentum_doubles_the_control_variate() -> None:
    """With a constant gradient g, SGD with momentum .5 moves nearly twice as far, so that c_i is twice as large."""
    w, v, t = 0.0, 0.0, 50
    for _ in range(t):
        v = 0.5 * v + 1.0
        w -= 0.1 * v
    assert -w / (t * 0.1) == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize("method", ["fedcm", "mofedsam", "mimelite", "heterofl+fedcm"])
def test_local_momentum_beside_a_server_momentum_is_refused(method: str) -> None:
    """With FedCM and local momentum .5, Delta <- (.1 g + .9 Delta) / (1 - .5) grows by the factor 1.8 per round."""
    with refuses("momentum", method, got=0.5):
        resolve_method(Experiment(method=method, momentum=0.5))
    resolve_method(Experiment(method=method, momentum=0.0, clip=1.0, compress="topk:0.1"))


@pytest.mark.parametrize("method", ["ra-fed", "ram-fed", "fedsam", "fedadam", "fedrobust", "fedavg", "fedasync"])
def test_harmless_combinations_of_settings_are_accepted(method: str) -> None:
    """RAM-Fed's experiments use momentum .5. Its memory is divided by the learning rate and multiplied by it again."""
    resolve_method(Experiment(method=method, momentum=0.5, clip=1.0, compress="topk:0.1", lr_schedule="cosine:10"))


def test_every_mean_of_full_models_combines_with_oap() -> None:
    combinable = [
        name
        for name, method in METHODS.items()
        if method.submodel == Full() and isinstance(method.update, Mean) and method.update.aggregator == CoverageMean()
    ]
    assert {"fedavg", "fedprox", "scaffold", "fedadam", "fedcm", "fedsam"} <= set(combinable)
    for name in combinable:
        assert find_method(f"oap+{name}").submodel == METHODS["oap"].submodel


def cohort_of(text: str, round: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(draw_cohort(PARTICIPATION.resolve(text), 5, round, seed))


def test_participation_draws_cohorts_of_the_specified_size() -> None:
    assert cohort_of("all", 3) == (0, 1, 2, 3, 4)
    drawn = [cohort_of("sample:2", round) for round in range(200)]
    assert {len(cohort) for cohort in drawn} == {2}
    assert all(a < b for a, b in drawn)
    # These are all pairs of five clients.
    assert len(set(drawn)) == 10
    assert drawn == [cohort_of("sample:2", round) for round in range(200)]
    assert drawn != [cohort_of("sample:2", round, 1) for round in range(200)]


def test_bernoulli_draws_clients_independently_and_no_empty_cohort() -> None:
    """With P = .1 and 5 clients, .9^5 = 59 % of the cohorts are empty and are drawn again. So E = .5 / .41 = 1.22."""
    cohorts = [cohort_of("bernoulli:0.1", round) for round in range(2000)]
    sizes = [len(cohort) for cohort in cohorts]
    assert min(sizes) == 1
    assert np.mean(sizes) == pytest.approx(0.5 / (1 - 0.9**5), abs=0.05)
    assert len(cohort_of("bernoulli:1", 0)) == 5


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "all:",
        "all:2",
        "sample",
        "sample:",
        "sample:0",
        "sample:6",
        "sample:1.5",
        "bernoulli",
        "bernoulli:0",
        "bernoulli:1.1",
        "bernoulli:nan",
        "bernoulli:x",
        "half",
    ],
)
def test_bad_participation_is_refused(spec: str) -> None:
    with refuses("participation", "sample:K", "bernoulli:P", got=spec):
        cohort_of(spec, 0)


def test_mean_is_over_the_cohort_only() -> None:
    """theta <- sum n_i w_i / sum n_i over the clients of the round. A client's turn counts only its own tasks."""
    run = spec("fedavg", momentum=0.0, participation="bernoulli:0.4")
    stepped, theta, turns, sizes = Stepped(run), start(run), [0] * CLIENTS, run.data.sizes
    cohorts = set()
    for _ in range(6):
        cohort = [task.client for task in stepped.round()]
        cohorts.add(tuple(cohort))
        w = [sgd(theta, minibatches(run, n, turns[n]), WIDTHS, lr=LR) for n in cohort]
        theta = np.average(w, axis=0, weights=sizes[cohort])
        for n in cohort:
            turns[n] += 1
        close(stepped.server.params, theta)
    assert len(cohorts) > 1


def test_grad_mix_without_a_server_momentum_is_refused() -> None:
    with refuses("local.grad_mix", "fedavg", got=0.5):
        resolve_method(Experiment(method="fedavg", override={"local.grad_mix": 0.5}))
