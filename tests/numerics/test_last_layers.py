"""SALF trains the last layers of a network with one hidden layer: its means, costs and bytes against NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy_mlp import Array, loss_gradient
from tiny import (
    BATCH,
    CLASSES,
    CLIENTS,
    EPOCHS,
    HIDDEN,
    LR,
    SEED,
    WIDTHS,
    Stepped,
    close,
    minibatches,
    spec,
    start,
    steps,
)

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.trainer import Work
from fedraa.composition.registry import find_method
from fedraa.methods.timelyfl import WithinInterval
from fedraa.rng import generator
from fedraa.submodels.policies.policy import RoundContext, RunContext
from fedraa.vectors.delta_view import DeltaView

LAST = HIDDEN * CLASSES + CLASSES
FIRST = 44 - LAST
# FLOPs of a sample: both products forward, the weights' and the inputs' gradients of the last layer, and the weights'
# gradient of the first.
FORWARD, LAST_WEIGHTS, LAST_INPUTS, FIRST_WEIGHTS = 2 * (15 + 20), 2 * 20, 2 * 20, 2 * 15
ALL = FORWARD + LAST_WEIGHTS + LAST_INPUTS + FIRST_WEIGHTS
SHARE = (FORWARD + LAST_WEIGHTS) / ALL


@pytest.mark.parametrize(("aggregator", "expected"), [("filled", (2.0, 5.0)), ("covered", (3.0, 5.0))])
def test_unreached_layer_counts_with_its_old_value_or_not_at_all(aggregator: str, expected: tuple[float, ...]) -> None:
    """theta is (1, 2); client 0 returns (3, 4), and client 1 trains only the last layer and returns 6."""
    theta, mean = np.array([1, 2], np.float32), AGGREGATOR.resolve(aggregator).bind(2, 2)
    returned = [(np.array([3, 4], np.float32), np.array([True, True])), (np.array([1, 6]), np.array([False, True]))]
    for client, (new, mask) in enumerate(returned):
        mean.add(ClientDelta(client, DeltaView(slice(None), new.astype(np.float32), theta, mask), 1.0, 0.1))
    delta, _ = mean.finish(RoundTotals(np.array([1, 2], np.int32), 0.1))
    close(theta + delta, expected)


def train(theta: Array, run: Any, client: int, turn: int, only: slice, decay: float = 0.0) -> Array:
    """Return the weights after SGD on the coordinates `only`; the others keep their values."""
    w = theta.astype(np.float64)
    for x, y in minibatches(run, client, turn):
        g = loss_gradient(w, x, y, WIDTHS)[1] + decay * w
        w[only] -= LR * g[only]
    return w


@pytest.mark.parametrize("aggregator", ["filled", "covered"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rounds_follow_the_formula(aggregator: str, decay: float) -> None:
    run = spec("salf", capacities=(1.0, 0.65, SHARE + 1e-9), aggregator=aggregator, weight_decay=decay)
    stepped, theta = Stepped(run), start(run)
    for turn in range(2):
        deltas = np.stack(
            [
                train(theta, run, client, turn, slice(None) if client == 0 else slice(FIRST, None), decay) - theta
                for client in range(CLIENTS)
            ]
        )
        divisor = np.full(44, CLIENTS)
        if aggregator == "covered":
            divisor[:FIRST] = 1
        theta = theta + deltas.sum(axis=0) / divisor
        stepped.round()
        close(stepped.server.params, theta)


@pytest.mark.parametrize("optimizer", ["adamw(weight_decay=0.5)", "sgd(momentum=0.9)", "dog", "delta-sgd"])
def test_other_layers_keep_their_values_with_every_optimizer(optimizer: str) -> None:
    lr = None if optimizer == "dog" else 0.02
    run = spec("salf", capacities=(0.65,), local_optimizer=optimizer, local_optimizer_state="keep", lr=lr)
    stepped = Stepped(run)
    for _ in range(2):
        for client in stepped.server.begin():
            task = stepped.server.assign(client, 0.0)
            update = stepped.train(task)
            np.testing.assert_array_equal(update.params[:FIRST], task.params[:FIRST])
            assert (update.params[FIRST:] != task.params[FIRST:]).any()
            stepped.server.commit(update, 1.0)


def test_norms_are_over_the_trained_layers() -> None:
    """Gradients of the other layers and their decay count neither for the rate of DoG nor for SAM."""
    fields: dict[str, Any] = {"capacities": (0.65,), "weight_decay": 0.3, "override": {"local.sam_rho": 0.2}}
    run = spec("salf", local_optimizer="dog(alpha=0.01)", lr=None, **fields)
    stepped = Stepped(run)
    task = stepped.server.assign(0, 0.0)
    w = task.params.astype(np.float64)
    radius, total, first = 0.01 * (1 + np.linalg.norm(w)), 0.0, w.copy()
    for x, y in minibatches(run, 0, 0):
        g = loss_gradient(w, x, y, WIDTHS)[1]
        g[:FIRST] = 0
        g = loss_gradient(w + 0.2 * g / np.linalg.norm(g), x, y, WIDTHS)[1] + 0.3 * w
        g[:FIRST] = 0
        radius = max(radius, np.linalg.norm(w - first))
        total += g @ g
        w -= radius / np.sqrt(total) * g
    np.testing.assert_allclose(stepped.train(task).params, w, atol=2e-5)


def test_costs_are_those_of_the_forward_pass_and_the_trained_layers() -> None:
    run = spec("salf", capacities=(1.0, 0.65, 0.1))
    stepped = Stepped(run)
    tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
    assert [task.fragment for task in tasks] == [2, 1, 1]
    assert [task.bytes_up for task in tasks] == [4 * 44, 4 * LAST, 4 * LAST]
    dispatched = stepped.records.of("dispatch")
    assert [line["bytes_down"] for line in dispatched] == [4 * 44] * 3
    for task in tasks:
        stepped.server.commit(stepped.train(task), 1.0)
    costs = stepped.server.task_table.costs
    for task, line in zip(tasks, stepped.records.of("commit"), strict=True):
        share = 1.0 if task.client == 0 else SHARE
        samples = 2 * run.data.sizes[task.client]
        assert line["flops"] == pytest.approx(ALL * share * samples)
        move = costs.cost(task.widths, task.client, 4 * 44, task.bytes_up, 0.0, None, 0.0).duration
        whole = costs.cost(task.widths, task.client, 4 * 44, task.bytes_up).duration
        assert task.cost == pytest.approx(move + share * (whole - move))
        assert share == 1 or task.cost < whole


def test_capacity_of_one_is_fedavg() -> None:
    salf, fedavg = Stepped(spec("salf", capacities=(1.0,))), Stepped(spec("fedavg", weights="uniform", momentum=0.0))
    for _ in range(2):
        salf.round()
        fedavg.round()
    np.testing.assert_array_equal(salf.server.params, fedavg.server.params)


def unequal_speeds(clients: int, rng: np.random.Generator) -> list[float]:
    return [1.0, 0.7, 0.2]


def test_capacities_follow_the_speeds_of_devices() -> None:
    run = spec("salf", capacities="auto", compute=unequal_speeds)
    stepped = Stepped(run)
    assert [stepped.server.assign(client, 0.0).fragment for client in stepped.server.begin()] == [2, 1, 1]


@pytest.mark.parametrize(
    ("on_time", "interval", "layers"), [(0.5, 2.0, [2, 2, 1]), (0.2, 1.0, [2, 1, 1]), (1, 5, [2] * 3)]
)
def test_timelyfl_trains_the_layers_that_fit_into_the_interval(
    on_time: float, interval: float, layers: list[int]
) -> None:
    """The three devices need the times 1, 2 and 5 for tasks of equal size; the last layer is 0.61 of the work."""
    fields: dict[str, Any] = {"compute": speeds_of_timelyfl, "partition": "iid"}
    stepped = Stepped(spec("timelyfl", **fields, override={"submodel.on_time": on_time}))
    tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
    assert [task.fragment for task in tasks] == layers
    costs = stepped.server.task_table.costs
    whole = [costs.cost(task.widths, task.client, 4 * 44, 4 * 44).duration for task in tasks]
    np.testing.assert_allclose(whole, np.array([1, 2, 5]) * whole[0])
    for task in tasks:
        share = min(1.0, interval * whole[0] / whole[task.client])
        expected = 1.0 if share == 1 else SHARE
        assert task.cost == pytest.approx(expected * whole[task.client])


def speeds_of_timelyfl(clients: int, rng: np.random.Generator) -> list[float]:
    return [1.0, 0.5, 0.2]


def test_share_of_clients_on_time_is_not_rounded_up() -> None:
    """7 of 100 clients are on time, although the computed 0.07 * 100 is a little more than 7."""
    assert 0.07 * 100 > 7
    run = spec("timelyfl")
    durations = np.arange(1.0, 101.0)
    context = RunContext(run.traced, 100, 0, run.params, run.example, durations=lambda: durations)
    sampler = WithinInterval(on_time=0.07).bind(context)
    turns = [RoundContext(client, 0, 0, 100, 0.0, run.params, context) for client in range(10)]
    assert [sampler.draw(turn).mask is None for turn in turns] == [True] * 7 + [False] * 3


def test_asynchronous_server_mixes_the_trained_layers() -> None:
    run = spec("salf-async", capacities=(0.65,), override={"update.mixing": 0.25})
    stepped = Stepped(run)
    first = next(iter(stepped.server.begin()))
    task = stepped.server.assign(first, 0.0)
    update = stepped.train(task)
    before = stepped.server.params.copy()
    stepped.server.commit(update, 1.0)
    expected = train(before, run, first, 0, slice(FIRST, None))
    assert steps(run, first) > 1
    close(stepped.server.params, 0.75 * before + 0.25 * expected)
    np.testing.assert_array_equal(stepped.server.params[:FIRST], before[:FIRST])


def test_stacks_train_as_tasks_one_by_one() -> None:
    models = []
    for size in (1, 3):
        run = spec("salf", capacities=(0.65, 0.65, 1.0), vmap_batch=size, weight_decay=0.1)
        stepped = Stepped(run)
        tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
        work = [Work(task, *run.data.client(task.client)) for task in tasks]
        models.append([update.params for update in stepped.trainer.train_all(work)])
    np.testing.assert_allclose(models[0], models[1], atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_algorithm_that_takes_its_own_steps_leaves_the_other_layers(decay: float) -> None:
    """pFedMe on the last layer: no other layer moves towards 0 during the task, so that the gradients are right."""
    salf, pfedme = find_method("salf"), find_method("pfedme")
    run = spec(replace(salf, local=pfedme.local), capacities=(0.65,), weight_decay=decay)
    stepped = Stepped(run)
    task = stepped.server.assign(0, 0.0)
    w, p = (task.params.astype(np.float64) for _ in range(2))
    for x, y in minibatches(run, 0, 0):
        for _ in range(5):
            change = loss_gradient(p, x, y, WIDTHS)[1] + decay * p + 15 * (p - w)
            p[FIRST:] -= 0.05 * change[FIRST:]
        w -= LR * 15 * (w - p)
    update = stepped.train(task)
    np.testing.assert_allclose(update.params, w, atol=2e-6)
    np.testing.assert_array_equal(update.params[:FIRST], task.params[:FIRST])
    np.testing.assert_allclose(update.extras["kept_personal_model"][FIRST:], p[FIRST:], atol=2e-6)


def test_pull_of_a_personal_model_to_other_layers_does_not_count_in_the_clipped_norm() -> None:
    """Ditto on the last layer. The other layers of the personal model differ from those of the received model."""
    salf, ditto = find_method("salf"), find_method("ditto")
    run = spec(replace(salf, local=ditto.local), capacities=(0.65,), momentum=0.0, clip=0.5)
    stepped = Stepped(run)
    own = run.params + np.float32(1)
    stepped.server.task_table.client_states._rows["kept_personal_model"][0][:] = own
    task = stepped.server.assign(0, 0.0)
    v, theta = own.astype(np.float64), task.params.astype(np.float64)
    x, y = run.data.client(0)
    rng = generator(SEED, "batches of personal", 0, 0)
    for order in (rng.permutation(len(y)) for _ in range(EPOCHS)):
        for rows in np.split(order, range(BATCH, len(y), BATCH)):
            g = (loss_gradient(v, x[rows], y[rows], WIDTHS)[1] + v - theta)[FIRST:]
            v[FIRST:] -= LR * g * min(1, 0.5 / np.linalg.norm(g))
    np.testing.assert_allclose(stepped.train(task).extras["kept_personal_model"], v, atol=2e-6)
