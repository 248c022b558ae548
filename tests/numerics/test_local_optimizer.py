"""Local optimizers against torch.optim, and their kept state against Adam in NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import EPOCHS, LR, Stepped, close, minibatches, spec
from torch import nn
from torch.nn.functional import cross_entropy

from fedraa.client import LocalTraining
from fedraa.client.batched_trainer import BatchedTrainer
from fedraa.client.trainer import Trainer, Work
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task
from fedraa.submodels import flat, flatten_parameters, load_parameters

# The tolerance of the comparison with torch.optim, which has double precision. Rounding of float32 grows with the rate.
ROUNDS, RATE = 3, 0.005
BETAS, EPS = (0.8, 0.99), 1e-6
OPTIMIZERS: list[tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = [
    ({"local_optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"local_optimizer": "sgd(momentum=0.9, nesterov=True, dampening=0)", "weight_decay": 0.1},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    ({"local_optimizer": "sgd(momentum=0.8, dampening=0.3)"}, torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
    ({"local_optimizer": "adam"}, torch.optim.Adam, {}),
    (
        {"local_optimizer": "adam(betas=(0.8, 0.99), eps=1e-6, amsgrad=True)", "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": BETAS, "eps": EPS, "amsgrad": True, "weight_decay": 0.1},
    ),
    (
        {"local_optimizer": "adam(betas=(0, 0.9), eps=1e-3, weight_decay=0.02)"},
        torch.optim.Adam,
        {"betas": (0.0, 0.9), "eps": 1e-3, "weight_decay": 0.02},
    ),
    ({"local_optimizer": "adamw"}, torch.optim.AdamW, {}),
    ({"local_optimizer": "adamw(weight_decay=0.3)"}, torch.optim.AdamW, {"weight_decay": 0.3}),
    ({"local_optimizer": "adamw", "weight_decay": 0.2}, torch.optim.AdamW, {"weight_decay": 0.2}),
]


def module_of(run: RunSpec, params: np.ndarray, widths: tuple[int, ...] | None = None) -> nn.Module:
    """Return the model of a run, or a cut of it, with these parameters and double precision."""
    module = run.traced.make_skeleton(widths or run.traced.widths(run.traced.full()))
    load_parameters(module, params.astype(np.float32))
    return module.double()


def plain_pytorch_loop(
    run: RunSpec, kind: type[torch.optim.Optimizer], options: dict[str, Any], *, keep: bool
) -> list[np.ndarray]:
    """Return the model after each round of a plain PyTorch loop."""
    module, models = module_of(run, run.params), []

    def make_optimizer() -> torch.optim.Optimizer:
        return kind(module.parameters(), lr=RATE, **options)

    optimizer = make_optimizer()
    for turn in range(ROUNDS):
        if not keep:
            optimizer = make_optimizer()
        for x, y in minibatches(run, 0, turn):
            optimizer.zero_grad()
            cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
            optimizer.step()
        models.append(flatten_parameters(module))
    return models


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize(("fields", "kind", "options"), OPTIMIZERS)
def test_one_client_equals_torch_optim(
    fields: dict[str, Any], kind: type[torch.optim.Optimizer], options: dict[str, Any], state: str
) -> None:
    run = spec("fedavg", clients=1, lr=RATE, local_optimizer_state=state, **fields)
    expected = plain_pytorch_loop(run, kind, options, keep=state == "keep")
    other = plain_pytorch_loop(run, kind, options, keep=state != "keep")
    assert np.abs(expected[-1] - other[-1]).max() > 1e-3
    stepped = Stepped(run)
    for model in expected:
        stepped.round()
        np.testing.assert_allclose(stepped.server.params, model, atol=1e-6)


class NumPyAdam:
    """Adam of one client in full coordinates; each coordinate counts its own steps."""

    def __init__(self, size: int) -> None:
        self.mean, self.squares, self.steps = np.zeros(size), np.zeros(size), np.zeros(size)

    def step(self, weights: np.ndarray, gradient: np.ndarray, where: np.ndarray, lr: float) -> None:
        """Change `weights` [d] at the coordinates `where` along their gradient."""
        self.steps[where] += 1
        self.mean[where] = BETAS[0] * self.mean[where] + (1 - BETAS[0]) * gradient
        self.squares[where] = BETAS[1] * self.squares[where] + (1 - BETAS[1]) * gradient**2
        mean = self.mean[where] / (1 - BETAS[0] ** self.steps[where])
        squares = self.squares[where] / (1 - BETAS[1] ** self.steps[where])
        weights[where] -= lr * mean / (np.sqrt(squares) + EPS)


def trained(run: RunSpec, task: Task, adam: NumPyAdam) -> np.ndarray:
    """Return the buffer [k] that a client with this state sends back for the task."""
    full = next(part for part in run.submodels if part.widths == task.widths)
    held = np.arange(run.traced.size) if full.index is None else full.index
    mask = np.ones(task.size, bool) if task.mask is None else task.mask
    weights = np.zeros(run.traced.size)
    weights[held] = np.where(mask, task.params, 0)
    for x, y in minibatches(run, task.client, task.turn):
        module = module_of(run, weights[held], task.widths)
        cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
        gradient = np.concatenate([parameter.grad.numpy().ravel() for parameter in module.parameters()])
        adam.step(weights, gradient[mask], held[mask], task.lr)
    return weights[held]


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fed-raa", {"ratios": (0.4, 0.6), "prox_mu": 0.0, "scheduler": "random"}),
        ("fed-raa-sync", {"ratios": (0.4, 0.6), "prox_mu": 0.0, "scheduler": "random"}),
        ("ra-fed", {"momentum": 0.0}),
    ],
)
def test_kept_state_of_submodels_equals_adam_on_full_coordinates(method: str, fields: dict[str, Any]) -> None:
    optimizer = f"adam(betas={BETAS}, eps={EPS})"
    run = spec(method, lr=0.02, local_optimizer=optimizer, local_optimizer_state="keep", **fields)
    stepped = Stepped(run)
    states = [NumPyAdam(run.traced.size) for _ in range(3)]
    choices, waiting = set(), list(stepped.server.begin())
    for _ in range(8):
        tasks = [stepped.server.assign(client, 0.0) for client in waiting]
        waiting = []
        for task in tasks:
            update = stepped.train(task)
            expected, mask = trained(run, task, states[task.client]), task.mask
            mask = np.ones(task.size, bool) if mask is None else mask
            np.testing.assert_allclose(update.params[mask], expected[mask], atol=2e-6)
            choices.add((task.client, task.fragment, None if task.mask is None else task.mask.tobytes()))
            waiting += stepped.server.commit(update, 1.0)
    assert len(choices) > 4
    assert any(len(set(state.steps[state.steps > 0])) > 1 for state in states)


def test_masked_coordinates_keep_their_state_and_their_weights() -> None:
    run = spec("ra-fed", local_optimizer="adamw(weight_decay=0.5)", local_optimizer_state="keep")
    stepped = Stepped(run)
    states, masked = stepped.server.task_table.client_states, 0
    for _ in range(4):
        tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
        for task in tasks:
            before = {name: rows.peek_row(task.client).copy() for name, rows in states._rows.items()}
            stepped.server.commit(stepped.train(task), 1.0)
            mask = np.ones(task.size, bool) if task.mask is None else task.mask
            masked += int((~mask).sum())
            for name, rows in states._rows.items():
                assert (rows.peek_row(task.client)[~mask] == before[name][~mask]).all()
                assert (rows.peek_row(task.client)[mask] != before[name][mask]).any()
    assert masked > 0


X, Y = np.random.default_rng(3).normal(size=(23, 3)).astype(np.float32), np.random.default_rng(4).integers(0, 4, 23)


def one_task(run: RunSpec, solver: LocalTraining, **changes: Any) -> Task:
    buffers = {
        f"kept_optimizer_{name}": np.abs(np.random.default_rng(1).normal(size=run.params.size)).astype(np.float32)
        for name in ("exp_avg", "exp_avg_sq")
    }
    steps = {"kept_optimizer_step": np.random.default_rng(2).integers(1, 5, run.params.size).astype(np.float32)}
    extras = {**buffers, **steps} if solver.optimizer_state == "keep" else {}
    widths = run.traced.widths(run.traced.full())
    return replace(Task(0, 0, 0, 0, 0, 0, widths, run.params, 0.1, 1.0, extras=extras), **changes)


TERMS: list[dict[str, Any]] = [
    {"prox_mu": 0.5},
    {"weight_decay": 0.1},
    {"sam_rho": 0.2},
    {"clip": 0.1},
    {"lr_schedule": "cosine:auto@local"},
]


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("terms", TERMS)
def test_batched_tasks_train_like_single_tasks(terms: dict[str, Any], state: Any) -> None:
    run = spec("fedavg", momentum=0.0)
    solver = LocalTraining(**terms, momentum=0.0, batch_size=8, epochs=2, local_optimizer="adam", optimizer_state=state)
    work = [
        Work(one_task(run, solver, client=client), X[: 23 - 5 * client], Y[: 23 - 5 * client]) for client in range(2)
    ]
    alone = [Trainer(run.traced, solver, seed=1).train(*one) for one in work]
    stacked = BatchedTrainer(run.traced, solver, 4, seed=1).train_all(work)
    for one, other in zip(alone, stacked, strict=True):
        np.testing.assert_allclose(other.params, one.params, atol=1e-6)
        assert one.extras.keys() == other.extras.keys()
        for name in one.extras:
            np.testing.assert_allclose(other.extras[name], one.extras[name], atol=1e-6)


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("optimizer", ["adam(amsgrad=True)", "adamw", "sgd(dampening=0.2)", "sgd(nesterov=True)"])
def test_steps_by_parameter_equal_steps_on_the_whole_buffer(
    optimizer: str, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec("fedavg")
    solver = LocalTraining(
        momentum=0.5, weight_decay=0.1, batch_size=8, epochs=2, local_optimizer=optimizer, optimizer_state=state
    )
    updates = []
    for by_piece in (10**9, 0):
        monkeypatch.setattr(flat, "BY_PIECE", by_piece)
        updates.append(Trainer(run.traced, solver, seed=1).train(one_task(run, solver, extras={}), X, Y))
    assert updates[0].params.tobytes() == updates[1].params.tobytes()
    for name, buffer in updates[0].extras.items():
        assert buffer.tobytes() == updates[1].extras[name].tobytes()
    assert bool(updates[0].extras) == (state == "keep")


def test_split_models_train_like_whole_models() -> None:
    whole, split = (
        Stepped(spec(method, local_optimizer="adam", local_optimizer_state="keep", lr=0.02, weights="samples"))
        for method in ("fedavg", "splitfed")
    )
    for _ in range(2):
        whole.round()
        split.round()
        close(split.server.params, whole.server.params)


SCHEDULERS: list[tuple[str, Any]] = [
    ("cosine:auto@local", lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)),
    ("cosine:40@local", lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)),
    ("exponential:0.9@local", lambda optimizer, steps: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)),
    ("steps:3,7:0.1@local", lambda optimizer, steps: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7], 0.1)),
]


@pytest.mark.parametrize(("schedule", "make_scheduler"), SCHEDULERS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_local_schedule_equals_torch_lr_scheduler(schedule: str, make_scheduler: Any, optimizer: str) -> None:
    """Each task creates a new optimizer and a new scheduler."""
    run = spec("fedavg", clients=1, lr=0.1, momentum=0.0, local_optimizer=optimizer, lr_schedule=schedule)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    module, stepped = module_of(run, run.params), Stepped(run)
    for turn in range(ROUNDS):
        torch_optimizer = kind(module.parameters(), lr=0.1)
        scheduler = make_scheduler(torch_optimizer, len(list(minibatches(run, 0, turn))))
        for x, y in minibatches(run, 0, turn):
            torch_optimizer.zero_grad()
            cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
            torch_optimizer.step()
            scheduler.step()
        stepped.round()
        np.testing.assert_allclose(stepped.server.params, flatten_parameters(module), atol=2e-6)


def test_scaffold_divides_by_the_sum_of_the_local_rates() -> None:
    """With one client, c_i becomes the mean gradient of its steps, weighted by their rates (option II)."""
    run = spec("scaffold", clients=1, lr_schedule="exponential:0.8@local")
    stepped, before = Stepped(run), run.params.copy()
    steps = len(list(minibatches(run, 0, 0)))
    assert steps == EPOCHS * 10
    stepped.round()
    rates = LR * 0.8 ** np.arange(steps)
    control = stepped.server._auxiliary._client.peek_row(0)  # type: ignore[attr-defined]
    np.testing.assert_allclose(control, (before - stepped.server.params) / rates.sum(), atol=1e-6)
    plain = Stepped(spec("scaffold", clients=1))
    plain.round()
    assert np.abs(plain.server._auxiliary._client.peek_row(0) - control).max() > 1e-3  # type: ignore[attr-defined]
