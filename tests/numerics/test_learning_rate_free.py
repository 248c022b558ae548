"""Delta-SGD, DoG, DoWG and LDoG against steps by hand and in NumPy, with masks, SAM, proximal terms and vmap."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy_mlp import Array, loss_gradient
from quadratic import kept
from refusals import refuses
from tiny import LR, SAMPLES, WIDTHS, Stepped, minibatches, spec

from fedraa.client import LocalTraining
from fedraa.client.batched_trainer import BatchedTrainer
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, OptimizerSteps
from fedraa.client.trainer import Trainer, Work
from fedraa.messages import Task

SIZES = [15, 5, 20, 4]
NAMES = ["delta-sgd", "dog", "dowg", "ldog"]


def descend(
    optimizer: str, gradient: Callable[[Array], Array], start: list[float], lr: float, steps: int
) -> tuple[list[Array], OptimizerSteps]:
    """Return the weights after each step along a gradient that is a function of the weights."""
    weights, path = torch.tensor(start), []
    taken = OptimizerSteps(
        LOCAL_OPTIMIZER.resolve(optimizer), weights, {}, momentum=0.0, weight_decay=0.0, sizes=[len(start)]
    )
    for _ in range(steps):
        taken.begin_step()
        taken.descend(weights, torch.tensor(gradient(weights.numpy())), ..., lr)
        path.append(weights.numpy().astype(np.float64))
    return path, taken


def test_delta_sgd_takes_the_rate_of_the_steepest_coordinate() -> None:
    path, _ = descend("delta-sgd", lambda x: x * np.float32([10, 1]), [1.0, 1.0], 0.2, 4)
    expected = [(-1, 0.8), (0.004937, 0.719605), (-0.000016, 0.647417), (0.000001, 0.579306)]
    np.testing.assert_allclose(path, expected, atol=2e-6)


def test_delta_sgd_grows_by_at_most_the_second_term() -> None:
    path, taken = descend("delta-sgd", lambda x: x * np.float32([2, 0.5]), [1.0, 1.0], 0.2, 4)
    rates, x = (0.2, 0.209762, 0.220488, 0.231786), np.ones(2)
    for rate, weights in zip(rates, path, strict=True):
        x = x * (1 - rate * np.array([2, 0.5]))
        np.testing.assert_allclose(weights, x, atol=2e-6)
    np.testing.assert_allclose(taken.state()["kept_optimizer_rate"], [rates[-1]], rtol=1e-5)


def test_delta_sgd_has_the_rate_of_the_curvature_after_one_step() -> None:
    """On L/2 |x|^2, gamma = 2 gives 1/L."""
    path, taken = descend("delta-sgd", lambda x: x * np.float32(20), [1.0, -3.0], 0.2, 2)
    np.testing.assert_allclose(taken.state()["kept_optimizer_rate"], [1 / 20], rtol=1e-6)
    np.testing.assert_allclose(path[-1], [0, 0], atol=1e-5)


@pytest.mark.parametrize("optimizer", NAMES)
def test_gradient_of_zero_moves_nothing_and_later_steps_do(optimizer: str) -> None:
    gradients = iter([np.zeros(2, np.float32)] * 2 + [np.ones(2, np.float32)] * 2)
    path, _ = descend(optimizer, lambda x: next(gradients), [1.0, 2.0], 0.1, 4)
    np.testing.assert_array_equal(path[:2], [[1, 2], [1, 2]])
    assert (path[3] < path[2]).all()
    assert (path[2] < path[1]).all()


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("dog", (0.9, 0.833104, 0.745237, 0.636692)), ("dowg", (0.9, 0.833104, 0.713162, 0.504769))],
)
def test_distance_over_gradients_follows_the_formula(optimizer: str, expected: tuple[float, ...]) -> None:
    """The gradient is 4 x; r begins at 0.05 * (1 + 1)."""
    path, _ = descend(f"{optimizer}(alpha=0.05)", lambda x: x * np.float32(4), [1.0], 0.1, 4)
    np.testing.assert_allclose(np.ravel(path), expected, atol=2e-6)


def test_ldog_is_dog_of_each_tensor() -> None:
    rng, start = np.random.default_rng(5), np.random.default_rng(6).normal(size=5).astype(np.float32)
    gradients = [rng.normal(size=5).astype(np.float32) for _ in range(3)]

    def trained(name: str, piece: slice, sizes: list[int]) -> Array:
        weights = torch.from_numpy(start[piece].copy())
        steps = OptimizerSteps(LOCAL_OPTIMIZER.resolve(name), weights, {}, momentum=0.0, weight_decay=0.0, sizes=sizes)
        for gradient in gradients:
            steps.begin_step()
            steps.descend(weights, torch.from_numpy(gradient[piece].copy()), ..., 0.1)
        return weights.numpy()

    both = trained("ldog(alpha=0.1)", slice(None), [2, 3])
    one_by_one = [trained("dog(alpha=0.1)", slice(0, 2), [2]), trained("dog(alpha=0.1)", slice(2, 5), [3])]
    np.testing.assert_allclose(both, np.concatenate(one_by_one), rtol=1e-6)


class NumPyDelta:
    """Delta-SGD by weights and gradients of two steps."""

    def __init__(self, first: float) -> None:
        self.rate, self.growth, self.last = first, 1.0, None

    def begin(self, x: Array) -> None:
        self.growth, self.last = 1.0, None

    def step(self, x: Array, g: Array) -> Array:
        if self.last is not None:
            distance, change = np.linalg.norm(x - self.last[0]), np.linalg.norm(g - self.last[1])
            rate = min(distance / change, np.sqrt(1 + 0.1 * self.growth) * self.rate)
            self.rate, self.growth = rate, rate / self.rate
        self.last = (x, g)
        return x - self.rate * g


class NumPyDoG:
    """DoG, or DoWG with `weighted`, for each of the tensors."""

    def __init__(self, alpha: float, cuts: list[int], weighted: bool = False) -> None:
        self.alpha, self.cuts, self.weighted = alpha, cuts, weighted
        self.radius, self.total, self.origin = np.zeros(len(cuts) + 1), np.zeros(len(cuts) + 1), None

    def begin(self, x: Array) -> None:
        if self.origin is None:
            self.origin = x.copy()

    def step(self, x: Array, g: Array) -> Array:
        parts = []
        for at, (w, slope, first) in enumerate(
            zip(*(np.split(v, self.cuts) for v in (x, g, self.origin)), strict=True)
        ):
            smallest = self.alpha * (1 + np.linalg.norm(first))
            self.radius[at] = r = max(self.radius[at], smallest, np.linalg.norm(w - first))
            self.total[at] += (r**2 if self.weighted else 1) * (slope @ slope)
            rate = 0.0
            if self.total[at]:
                rate = (r**2 if self.weighted else r) / np.sqrt(self.total[at])
            parts.append(w - rate * slope)
        return np.concatenate(parts)


CUTS = list(np.cumsum(SIZES)[:-1])
REFERENCES: dict[str, Callable[[], Any]] = {
    "delta-sgd": lambda: NumPyDelta(LR),
    "dog(alpha=0.01)": lambda: NumPyDoG(0.01, []),
    "dowg(alpha=0.01)": lambda: NumPyDoG(0.01, [], weighted=True),
    "ldog(alpha=0.01)": lambda: NumPyDoG(0.01, CUTS),
}
TERMS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedavg", {"prox_mu": 0.3, "override": {"local.sam_rho": 0.1}}),
    ("ra-fed", {}),
]


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize(("method", "terms"), TERMS)
@pytest.mark.parametrize("optimizer", REFERENCES)
def test_tasks_follow_the_formula(optimizer: str, method: str, terms: dict[str, Any], state: str) -> None:
    """ra-fed trains under masks. Its norms are over the trained coordinates, and its state is reset in each task."""
    if method == "ra-fed" and state == "keep":
        method, terms = "fedavg", {"weight_decay": 0.05}
    fields = terms if optimizer != "delta-sgd" else {"lr": LR, **terms}
    run = without_rate(method, optimizer, state, **fields)
    stepped = Stepped(run)
    sam, prox = fields.get("override", {}).get("local.sam_rho", 0.0), fields.get("prox_mu", 0.0)
    decay = fields.get("weight_decay", 0.0)
    references = {client: REFERENCES[optimizer]() for client in range(3)}
    for _ in range(2):
        for client in stepped.server.begin():
            task = stepped.server.assign(client, 0.0)
            mask = np.ones(task.size, bool) if task.mask is None else task.mask
            received = task.params * mask.astype(np.float64)
            reference = references[client]
            if state == "reset":
                reference = REFERENCES[optimizer]()
            reference.begin(received)
            x = received
            for inputs, labels in minibatches(run, client, task.turn):
                _, g = loss_gradient(x, inputs, labels, WIDTHS, mask)
                if sam:
                    _, g = loss_gradient(x + sam * g / np.linalg.norm(g), inputs, labels, WIDTHS, mask)
                x = reference.step(x, g + prox * (x - received) + decay * x)
            update = stepped.train(task)
            np.testing.assert_allclose(update.params[mask], x[mask], atol=2e-5)
            assert np.abs(x - received).max() > 0.01
            stepped.server.commit(update, 1.0)


def without_rate(method: str, optimizer: str, state: str, **fields: Any) -> Any:
    """Return a run of a local optimizer, without `lr` for an optimizer that has no learning rate."""
    if "lr" not in fields:
        fields["lr"] = None
    return spec(method, momentum=0.0, local_optimizer=optimizer, local_optimizer_state=state, **fields)


@pytest.mark.parametrize("optimizer", NAMES)
def test_fragments_keep_the_distance_of_their_own_coordinates(optimizer: str) -> None:
    """A client that trains several fragments keeps the first weights of each fragment, and one rate."""
    run = without_rate("fed-raa", optimizer, "keep", ratios=(0.4, 0.6), prox_mu=0.0, scheduler="random")
    stepped, first = Stepped(run), {}
    waiting = list(stepped.server.begin())
    for _ in range(9):
        task = stepped.server.assign(waiting.pop(0), 0.0)
        update = stepped.train(task)
        first.setdefault((task.client, task.fragment), task.params.copy())
        if optimizer != "delta-sgd":
            origin = update.extras["kept_optimizer_origin"]
            # The two fragments of the tiny model share only the bias of the output.
            np.testing.assert_array_equal(origin[:-4], first[task.client, task.fragment][:-4])
        waiting += stepped.server.commit(update, 1.0)
    assert len(first) > 3


X, Y = np.random.default_rng(3).normal(size=(23, 3)).astype(np.float32), np.random.default_rng(4).integers(0, 4, 23)


@pytest.mark.parametrize("optimizer", NAMES)
def test_stacks_train_as_tasks_one_by_one(optimizer: str) -> None:
    run = spec("fedavg", momentum=0.0)
    solver = LocalTraining(momentum=0.0, batch_size=8, epochs=2, local_optimizer=optimizer, optimizer_state="keep")
    buffers = {buffer.key: buffer for buffer in LOCAL_OPTIMIZER.resolve(optimizer).kept(0.0, len(SIZES))}
    extras = {key: np.full(buffer.count(44), 0.1, np.float32) for key, buffer in buffers.items()}
    widths = run.traced.widths(run.traced.full())
    task = Task(0, 0, 0, 0, 0, 0, widths, run.params, 0.1, 1.0, extras=extras)
    work = [Work(replace(task, client=client), X[: 23 - 5 * client], Y[: 23 - 5 * client]) for client in range(2)]
    alone = [Trainer(run.traced, solver, seed=1).train(*one) for one in work]
    stacked = BatchedTrainer(run.traced, solver, 4, seed=1).train_all(work)
    for one, other in zip(alone, stacked, strict=True):
        np.testing.assert_allclose(other.params, one.params, atol=1e-6)
        assert one.extras.keys() == other.extras.keys() == buffers.keys()
        for name in one.extras:
            assert one.extras[name].shape == other.extras[name].shape
            np.testing.assert_allclose(other.extras[name], one.extras[name], rtol=1e-5)


FULL_RATE: dict[str, Any] = {"lr": None, "override": {"local.full_rate": True}}


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("lr", {"local_optimizer": "dog", "lr": 0.3}),
        ("lr_schedule", {"local_optimizer": "ldog", "lr": None, "lr_schedule": "cosine:9"}),
        (
            "local.full_rate",
            {"method": "fedrolex", "local_optimizer": "dowg", **FULL_RATE},
        ),
        ("lr_schedule", {"local_optimizer": "delta-sgd", "lr_schedule": "cosine:9@local"}),
        ("lr_schedule", {"local_optimizer": "delta-sgd", "lr_schedule": "cosine:9", "local_optimizer_state": "keep"}),
        ("lr_schedule", {"method": "delta-sgd", "lr_schedule": "adaptive", "local_optimizer_state": "keep"}),
        ("momentum", {"local_optimizer": "delta-sgd", "momentum": 0.9}),
        ("local_optimizer", {"method": "scaffold", "local_optimizer": "delta-sgd"}),
        ("local_optimizer.gamma", {"local_optimizer": "delta-sgd(gamma=0)"}),
    ],
)
def test_values_without_effect_are_refused(field: str, fields: dict[str, Any]) -> None:
    with refuses(field):
        spec(**{"method": "fedavg", **fields})


def test_the_method_is_fedavg_with_the_optimizer() -> None:
    stepped, plain = Stepped(spec("delta-sgd")), Stepped(spec("fedavg", local_optimizer="delta-sgd"))
    for _ in range(2):
        stepped.round()
        plain.round()
    np.testing.assert_array_equal(stepped.server.params, plain.server.params)


def test_a_kept_rate_leaves_the_first_rate() -> None:
    """Of two full-batch steps at a low rate, the second has a rate sqrt(1.1) times as large."""
    fields: dict[str, Any] = {"lr": 0.001, "batch_size": SAMPLES, "local_steps": 2, "local_epochs": None}
    stepped = Stepped(spec("delta-sgd", **fields, lr_schedule="constant", local_optimizer_state="keep"))
    for turn in range(1, 5):
        stepped.round()
        np.testing.assert_allclose(kept(stepped, "optimizer_rate"), [[0.001 * 1.1 ** (turn / 2)]] * 3, rtol=1e-5)
