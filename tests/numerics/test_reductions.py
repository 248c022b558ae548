"""Methods that must be equal in special cases: with full masks, with absent coordinates, and with masks or slices."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from first_task import first_task
from numpy_mlp import loss_gradient
from tiny import LR, SEED, Stepped, minibatches, spec
from two_layers import SIZE, WIDTHS, coordinates

from fedraa.client import LocalTraining
from fedraa.client.trainer import Trainer
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task
from fedraa.server.optimizers import Momentum
from fedraa.server.round_update import Mean
from fedraa.submodels import flatten_parameters
from fedraa.submodels.policies.regions import Arbitrary

FULL = {"momentum": 0.0, "capacities": (1.0,)}
BARE = FULL | {"weight_decay": 0.0, "clip": 0.0}


def two_layer_run(method: str, **flags: Any) -> RunSpec:
    return spec(method, hidden=WIDTHS[1:-1], **flags)


def model_after_three_rounds(run: RunSpec) -> np.ndarray:
    """Return the model after three rounds."""
    stepped = Stepped(run)
    for _ in range(3):
        stepped.round()
    assert np.abs(stepped.server.params - run.params).max() > 0.1
    return stepped.server.params


def uniform_fedavg(**flags: Any) -> np.ndarray:
    run = two_layer_run("fedavg", momentum=0.0, **flags)
    return model_after_three_rounds(replace(run, method=replace(run.method, update=Mean("uniform"))))


@pytest.fixture(scope="module")
def fedavg() -> np.ndarray:
    return uniform_fedavg()


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("oap", FULL),
        ("heterofl", BARE),
        ("fedrolex", BARE),
        ("bernoulli", FULL),
        ("bernoulli-kernels", FULL),
        ("shuffled", FULL),
        ("shuffled-kernels", FULL),
    ],
)
def test_full_capacity_equals_fedavg(fedavg: np.ndarray, method: str, flags: dict[str, Any]) -> None:
    run = two_layer_run(method, **flags)
    local, update = run.method.local, run.method.update
    assert isinstance(update, Mean)
    # HeteroFL and FedRolex run without masked labels, and all clients send the whole last layer.
    plain = replace(run.method, local=replace(local, label_masked=False), update=replace(update, owned_head=False))
    np.testing.assert_allclose(model_after_three_rounds(replace(run, method=plain)), fedavg, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["ra-fed", "ram-fed", "ram-fed-mifa", "subdismo"])
def test_masks_of_the_whole_model_equal_fedavg(fedavg: np.ndarray, method: str) -> None:
    """With one region, each client trains the whole model. Then Gamma = N, and RAM-Fed's memory cancels out."""
    run = two_layer_run(method, momentum=0.0, **({"override": {"local.sam_rho": 0.0}} if method == "subdismo" else {}))
    whole = replace(run.method, submodel=Arbitrary("S", parts=1))
    np.testing.assert_allclose(model_after_three_rounds(replace(run, method=whole)), fedavg, rtol=0, atol=1e-6)


def test_prunefl_with_density_one_equals_fedavg() -> None:
    weighted = model_after_three_rounds(two_layer_run("fedavg", momentum=0.0))
    np.testing.assert_allclose(
        model_after_three_rounds(two_layer_run("prunefl", override={"submodel.density": 1.0})),
        weighted,
        rtol=0,
        atol=1e-6,
    )


def test_ist_of_one_client_equals_fedavg() -> None:
    """The bits are equal with equal weights, because samples * delta / samples may differ from delta in float32."""
    one = model_after_three_rounds(two_layer_run("ist", clients=1, momentum=0.0))
    np.testing.assert_array_equal(one, uniform_fedavg(clients=1))


@pytest.mark.parametrize(
    ("method", "flags"),
    [
        ("ra-fed", {"override": {"submodel.level": "S", "submodel.uncovered_every": 2}}),
        ("subdismo", {"clients": 2}),
        ("oap", {"capacities": (0.75, 0.5)}),
        ("oap+fedadam", {"capacities": (0.75, 0.5)}),
        ("oap+fedavgm", {"capacities": (0.75, 0.5)}),
        ("oap+scaffold", {"capacities": (0.75, 0.5)}),
        ("heterofl", {"capacities": (0.5, 0.25)}),
        ("fedrolex", {"capacities": (0.5, 0.25)}),
        ("fedrolex+fedyogi", {"capacities": (0.5, 0.25)}),
        ("ist", {}),
        ("ist+fedadagrad", {}),
        ("prunefl", {"submodel": "adaptive-pruning(initial=0)"}),
        ("bernoulli", {"capacities": (0.2,)}),
        ("shuffled", {"capacities": (0.5,)}),
    ],
)
def test_coordinates_that_no_client_trains_keep_their_bits(method: str, flags: dict[str, Any]) -> None:
    # Every client has every label.
    system = Stepped(two_layer_run(method, partition="iid", **flags))
    server, uncovered = system.server, []
    for _ in range(4):
        before, untrained = server.params.copy(), np.ones(SIZE, bool)
        tasks = [server.assign(client, 0.0) for client in server.begin()]
        for task in tasks:
            untrained[server.task_table.in_flight[task.id].assignment.where] = False
        for task in tasks:
            server.commit(system.train(task), 1.0)
        np.testing.assert_array_equal(server.params[untrained].view(np.int32), before[untrained].view(np.int32))
        assert (server.params[~untrained] != before[~untrained]).any()
        uncovered.append(untrained.sum())
    assert max(uncovered) > 2
    assert [line["uncovered"] for line in system.records.of("round")] == uncovered


def test_server_momentum_of_untrained_coordinates_stays_unchanged() -> None:
    """FedAvgM with beta = 1/2: no client trains the second coordinate in round 2, so its momentum does not change."""
    optimizer, params = Momentum(beta=0.5).bind(2), np.zeros(2, np.float32)
    for delta, moved, expected in [
        ([1, 1], [True, True], [1, 1]),
        ([0, 0], [True, False], [1.5, 1]),
        ([0, 0], [True, True], [1.75, 1.5]),
    ]:
        optimizer.step(params, np.array(delta, np.float32), np.array(moved))
        assert params.tolist() == expected


def test_output_rows_without_an_owner_keep_their_bits() -> None:
    """One client with two labels takes part, so two of the four output rows have no owner."""
    run = two_layer_run("heterofl", clients=2, partition="labels", capacities=(1.0,), participation="sample:1")
    system = Stepped(run)
    [task] = system.round()
    owned = {int(label) for label in run.data.client(task.client)[1]}
    assert len(owned) == 2
    after = system.server.params
    for label in range(4):
        row = [*range(52 + 4 * label, 56 + 4 * label), 68 + label]
        same = after[row] == run.params[row]
        assert not same.all() if label in owned else same.all()


def test_prunefl_receives_the_gradients_of_absent_weights() -> None:
    """PruneFL gets the squares of the unmasked gradient at the masked weights, and only present weights change."""
    system = Stepped(two_layer_run("prunefl", override={"submodel.density": 0.6}))
    [task, *_] = [system.server.assign(client, 0.0) for client in system.server.begin()]
    update, mask = system.train(task), task.mask
    assert mask is not None
    w, squares = task.params.astype(np.float64), np.zeros(SIZE)
    for x, y in minibatches(system.run, task.client, 0):
        _, g = loss_gradient(w, x, y, WIDTHS)
        squares += g**2
        w = w - LR * g * mask
    np.testing.assert_allclose(update.extras["squares"], squares, rtol=1e-4, atol=1e-7)
    assert (squares[~mask] > 1e-6).sum() > 10
    assert not update.params[~mask].any()


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"prox_mu": 0.5, "momentum": 0.5},
        {"sam_rho": 0.3},
        {"clip": 0.1, "weight_decay": 0.1},
    ],
)
def test_a_dense_slice_and_a_mask_of_its_coordinates_train_alike(terms: dict[str, float]) -> None:
    """In a ReLU network absent neurons have the value 0. The mask has all weights and biases of an absent neuron."""
    # The first run cuts the model, and FedAvg trains the whole model.
    run = two_layer_run("fed-raa")
    where, widths = coordinates([[0, 2, 5], [1, 2]])
    mask = np.zeros(SIZE, bool)
    mask[where] = True
    trainer = Trainer(
        run.traced, LocalTraining(**({"momentum": 0.0} | terms), lr=LR, batch_size=6, epochs=2), seed=SEED
    )
    params = run.params
    sliced = trainer.train(task_of(params[where], tuple(widths[1:-1])), *run.data.client(0)).params
    masked = trainer.train(task_of(params, WIDTHS[1:-1], mask), *run.data.client(0)).params
    np.testing.assert_allclose(masked[where], sliced, rtol=0, atol=1e-6)
    assert not masked[~mask].any()
    assert np.abs(sliced - params[where]).max() > 0.05


def test_masked_sam_perturbs_only_trained_coordinates_by_rho() -> None:
    run = two_layer_run("fed-raa")
    mask = np.random.default_rng(0).random(SIZE) < 0.5
    trainer = Trainer(run.traced, LocalTraining(momentum=0.0, sam_rho=0.3, batch_size=6, steps=1), seed=SEED)
    seen: list[np.ndarray] = []
    trainer._model(WIDTHS[1:-1]).module.register_forward_pre_hook(lambda m, inputs: seen.append(flatten_parameters(m)))
    trainer.train(task_of(run.params, WIDTHS[1:-1], mask), *run.data.client(0))
    w, perturbed = seen
    np.testing.assert_array_equal(w, run.params * mask)
    assert np.linalg.norm(perturbed - w) == pytest.approx(0.3, rel=1e-5)
    assert not perturbed[~mask].any()


def task_of(params: np.ndarray, widths: tuple[int, ...], mask: np.ndarray | None = None) -> Task:
    return first_task(widths=widths, buffer=params, lr=LR, mask=mask)
