"""Methods with personal models against steps by hand, with f_i(x) = 0.5 (x - t_i)^2, and against NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy_mlp import loss_gradient
from quadratic import HalfSquare, close, kept, quadratic, train_round
from refusals import refuses
from tiny import LR, WIDTHS, Stepped, spec

from fedraa.client.trainer import ModelSettings
from fedraa.composition.registry import find_method
from fedraa.engine.factories import make_cost_model, make_worker_spec
from fedraa.evaluation.personal import FineTuning
from fedraa.methods.apfl import MixedModel
from fedraa.methods.ditto import PulledModel
from fedraa.methods.pfedme import MoreauEnvelope
from fedraa.rng import generator

TARGETS = (1.0, -3.0)
MODEL = ModelSettings(HalfSquare())


def test_ditto_trains_a_pulled_model_beside_the_shared_one() -> None:
    stepped = quadratic("ditto", TARGETS, local_steps=2)
    close(train_round(stepped), [[0.19], [-0.57]])
    close(kept(stepped, "personal_model"), [[0.18], [-0.54]])
    close(stepped.server.params, [-0.19])
    stepped.round()
    close(kept(stepped, "personal_model"), [[0.261], [-0.9198]])
    close(stepped.server.params, [-0.3439])


@pytest.mark.parametrize("fields", [{}, {"momentum": 0.5, "local_optimizer_state": "keep"}], ids=["reset", "keep"])
def test_global_model_of_ditto_equals_fedavg(fields: dict[str, Any]) -> None:
    ditto, fedavg = Stepped(spec("ditto", **fields)), Stepped(spec("fedavg", **fields))
    for _ in range(3):
        ditto.round()
        fedavg.round()
    np.testing.assert_array_equal(ditto.server.params, fedavg.server.params)


def sample_orders(run: Any, client: int, turn: int, stream: str) -> list[np.ndarray]:
    """Return the samples of each minibatch of a stream."""
    rng = generator(run.experiment.seed, f"batches{stream}", client, turn)
    count, size = len(run.data.client(client)[1]), run.experiment.batch_size
    batches: list[np.ndarray] = []
    for _ in range(run.experiment.local_epochs):
        order = rng.permutation(count)
        batches += [order[start : start + size] for start in range(0, count, size)]
    return batches


def test_personal_model_of_ditto_equals_numpy() -> None:
    run = spec("ditto", momentum=0.0, override={"local.algorithm.pull": 0.7})
    stepped = Stepped(run)
    models = [run.params.astype(np.float64) for _ in range(3)]
    for turn in range(3):
        received = stepped.server.params.astype(np.float64)
        stepped.round()
        for client, v in enumerate(models):
            x, y = run.data.client(client)
            for rows in sample_orders(run, client, turn, " of personal"):
                v -= LR * (loss_gradient(v, x[rows], y[rows], WIDTHS)[1] + 0.7 * (v - received))
        np.testing.assert_allclose(kept(stepped, "personal_model"), models, atol=2e-6)


def dog(x: float, target: float, pull: float = 0.0, centre: float = 0.0) -> float:
    """Return x after three steps of DoG on 0.5 (x - target)^2 + pull / 2 (x - centre)^2.

    The rate is r / sqrt(G), where r is the largest distance from the first x.
    """
    first, radius, total = x, 0.1 * (1 + abs(x)), 0.0
    for _ in range(3):
        g = x - target + pull * (x - centre)
        radius, total = max(radius, abs(x - first)), total + g**2
        x -= radius / total**0.5 * g
    return x


def test_personal_model_of_ditto_has_a_separate_origin_for_dog() -> None:
    stepped = quadratic("ditto", TARGETS, local_steps=3, local_optimizer="dog(alpha=0.1)", lr=None)
    theta, models = 0.0, [0.0, 0.0]
    for _ in range(2):
        models = [dog(v, t, 1.0, theta) for v, t in zip(models, TARGETS, strict=True)]
        theta = sum(dog(theta, t) for t in TARGETS) / 2
        stepped.round()
        close(kept(stepped, "personal_model"), [[v] for v in models])
        close(stepped.server.params, [theta])


def test_ditto_with_fragments_changes_only_trained_coordinates() -> None:
    ditto = spec("ditto").method.local.algorithm
    fed_raa = find_method("fed-raa")
    method = replace(fed_raa, local=replace(fed_raa.local, algorithm=ditto))
    run = spec(method, ratios=(0.4, 0.6), scheduler="random")
    stepped = Stepped(run)
    states = stepped.server.task_table.client_states
    waiting = list(stepped.server.begin())
    trained = np.zeros(run.traced.size, bool)
    for client in waiting:
        task = stepped.server.assign(client, 0.0)
        assignment = stepped.server.task_table.in_flight[task.id].assignment
        stepped.server.commit(stepped.train(task), 1.0)
        trained[:] = False
        trained[assignment.where] = True
        [row] = states.copy_rows([client])["kept_personal_model"]
        np.testing.assert_array_equal(np.isnan(row), ~trained)
        assert (row[trained] != run.params[trained]).any()
        model = ditto.personal_model({"personal_model": row}, stepped.server.params)
        np.testing.assert_array_equal(model[~trained], stepped.server.params[~trained])


def test_apfl_mixes_weights_and_learns_the_mixture() -> None:
    stepped = quadratic("apfl", (1.0,), local_steps=1, clients=1)
    states = stepped.server.task_table.client_states
    states._rows["kept_local_model"][0][:] = 0.2
    states._rows["kept_mixing"][0][:] = 0.5
    stepped.round()
    close(stepped.server.params, [0.1])
    close(kept(stepped, "local_model"), [[0.245]])
    close(kept(stepped, "mixing"), [[0.518]])
    values = {"local_model": kept(stepped, "local_model")[0], "mixing": kept(stepped, "mixing")[0]}
    close(MixedModel().personal_model(values, stepped.server.params), [0.17511])
    stepped.round()
    close(stepped.server.params, [0.19])
    close(kept(stepped, "local_model"), [[0.2877293]])
    close(kept(stepped, "mixing"), [[0.52996091]])
    values = {"local_model": kept(stepped, "local_model")[0], "mixing": kept(stepped, "mixing")[0]}
    close(MixedModel().personal_model(values, stepped.server.params), [0.24179271])


def test_apfl_in_one_task_takes_the_same_steps() -> None:
    stepped = quadratic("apfl", (1.0,), local_steps=2, clients=1)
    states = stepped.server.task_table.client_states
    states._rows["kept_local_model"][0][:] = 0.2
    states._rows["kept_mixing"][0][:] = 0.5
    stepped.round()
    close(stepped.server.params, [0.19])
    close(kept(stepped, "local_model"), [[0.2877293]])
    close(kept(stepped, "mixing"), [[0.52996091]])


def test_mixing_weight_that_is_not_adaptive_stays_constant() -> None:
    stepped = quadratic("apfl", TARGETS, local_steps=3, override={"local.algorithm.adaptive": False})
    stepped.round()
    close(kept(stepped, "mixing"), [[0.5], [0.5]])


@pytest.mark.parametrize("clipped", [0.0, 1.0])
def test_mixing_weight_stays_between_0_and_1(clipped: float) -> None:
    stepped = quadratic("apfl", (1.0,), local_steps=1, clients=1, lr=50.0)
    states = stepped.server.task_table.client_states
    # The gradient at the mixture is negative, so that the weight grows if the local model is larger.
    states._rows["kept_local_model"][0][:] = 0.2 if clipped else -0.2
    states._rows["kept_mixing"][0][:] = 0.5
    update = stepped.train(stepped.server.assign(0, 0.0))
    close(update.extras["kept_mixing"], [clipped])


def test_pfedme_moves_the_shared_model_towards_the_personal_one() -> None:
    override = {"local.algorithm.personal_lr": 0.05, "local.algorithm.inner_steps": 3}
    stepped = quadratic("pfedme", TARGETS, lr=0.01, local_steps=2, override=override)
    close(train_round(stepped), [[0.01857675], [-0.05573025]])
    close(kept(stepped, "personal_model"), [[0.071145], [-0.213435]])
    close(stepped.server.params, [-0.01857675])


def test_adaptive_rate_of_pfedme_follows_the_shared_model() -> None:
    """The shared model approaches the target in every step, but it stays behind the personal model."""
    stepped = quadratic("pfedme", (1.0,), clients=1, lr=0.01, lr_schedule="adaptive", local_steps=4)
    assert stepped.train(stepped.server.assign(0, 0.0)).cosine == pytest.approx(1.0)


def test_server_lr_of_pfedme_scales_the_server_step() -> None:
    fields: dict[str, Any] = {"lr": 0.01, "local_steps": 2}
    whole, half = quadratic("pfedme", TARGETS, **fields), quadratic("pfedme", TARGETS, server_lr=0.5, **fields)
    whole.round()
    half.round()
    close(half.server.params, 0.5 * whole.server.params)


@pytest.mark.parametrize(
    ("method", "algorithm", "passes"),
    [("ditto", PulledModel(), 2), ("apfl", MixedModel(), 2), ("pfedme", MoreauEnvelope(), 5)],
)
def test_cost_counts_the_passes_of_the_personal_model(method: str, algorithm: Any, passes: int) -> None:
    run, plain = spec(method), spec("fedavg")
    widths = run.traced.widths(run.traced.full())
    costs, of_plain = make_cost_model(run), make_cost_model(plain)
    assert costs.flops(widths, 0) == passes * of_plain.flops(widths, 0)
    assert costs.cost(widths, 0, 0, 0).duration > of_plain.cost(widths, 0, 0, 0).duration
    assert costs.sent(widths) == of_plain.sent(widths)
    assert algorithm.has_personal_model


@pytest.mark.parametrize("method", ["ditto", "apfl", "pfedme"])
def test_client_that_never_trained_is_evaluated_with_the_global_model(method: str) -> None:
    stepped = quadratic(method, TARGETS, local_steps=2)
    evaluator = make_worker_spec(stepped.run).evaluator(stepped.run.evaluation_data, "cpu")
    states = stepped.server.task_table.client_states

    def metrics() -> Any:
        rows = states.copy_rows(stepped.run.personal_clients)
        return evaluator.evaluate(stepped.server.params, rows).metrics

    first = metrics()
    assert first["personal_mean"] == first["client_mean"]
    stepped.round()
    second = metrics()
    assert second["personal_mean"] < second["client_mean"]


@pytest.mark.parametrize("epochs", [1, 5])
def test_fine_tuning_trains_the_global_model_for_the_epochs_of_a_task(epochs: int) -> None:
    stepped = quadratic("fedavg", TARGETS, local_epochs=epochs, personalised=2)
    fine_tuning = FineTuning(stepped.run.traced, stepped.run.method.local, seed=0, model=MODEL)
    for client, target in enumerate(TARGETS):
        model = fine_tuning.model(stepped.server.params, {}, client, *stepped.run.data.client(client))
        close(model, [target * (1 - 0.9**epochs)])
    close(stepped.server.params, [0.0])


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("apfl", {"momentum": 0.5}, "momentum"),
        ("apfl", {"local_optimizer": "adam"}, "local_optimizer"),
        ("pfedme", {"momentum": 0.5}, "momentum"),
        ("pfedme", {"override": {"local.sam_rho": 0.1}}, "local.sam_rho"),
        ("ditto", {"vmap_batch": 2}, "vmap_batch"),
        ("ditto", {"override": {"local.algorithm.pull": -1}}, "local.algorithm.pull"),
    ],
)
def test_settings_that_break_the_formula_are_refused(method: str, fields: dict[str, Any], field: str) -> None:
    with refuses(field):
        spec(method, **fields)
