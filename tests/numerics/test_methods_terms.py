"""The options of local training, one by one and under masks, against NumPy on 44 parameters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from first_task import first_task
from numpy_mlp import Array, forward, gradients, layers, loss_gradient, sgd
from refusals import refuses
from tiny import CLASSES, FEATURES, LR, SEED, WIDTHS, Stepped, close, minibatches, spec, start

from fedraa.client import LocalTraining
from fedraa.client.gradient_transforms import Proximal
from fedraa.client.input_adversary import ADVERSARY_KEY, Adversary
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.client.lr_schedule import lr_schedule
from fedraa.client.model_settings import ModelSettings
from fedraa.client.trainer import Trainer
from fedraa.messages import Task
from fedraa.submodels import flatten_parameters

RUN = spec("fedavg", momentum=0.0)
WHOLE = RUN.traced.widths(RUN.traced.full())
SIZE = len(RUN.params)
X, Y = RUN.data.client(0)
MASK = np.random.default_rng(0).random(SIZE) < 0.6
CONTROL = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)


def result(terms: dict[str, Any], **fields: Any) -> np.ndarray:
    """Return the result of a client's first task with these options of local training."""
    task = first_task(widths=WHOLE, buffer=RUN.params, lr=LR, **fields)
    return Trainer(RUN.traced, replace(RUN.method.local, **terms), seed=SEED).train(task, X, Y).params


def descend(direction: Callable[[Array, Array, Array], Array], momentum: float = 0.0) -> Array:
    """Return the weights after w <- w - lr v, v <- momentum v + direction(w, x, y) on the first task's minibatches."""
    w, v = start(RUN), np.zeros(SIZE)
    for x, y in minibatches(RUN, 0, 0):
        v = momentum * v + direction(w, x, y)
        w = w - LR * v
    return w


def gradient(w: Array, x: Array, y: Array) -> Array:
    return loss_gradient(w, x, y, WIDTHS)[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weight_decay_is_in_the_gradient(momentum: float) -> None:
    expected = descend(lambda w, x, y: gradient(w, x, y) + 0.3 * w, momentum)
    close(result({"weight_decay": 0.3, "momentum": momentum}), expected)


def test_clipping_bounds_the_gradient_before_decay_and_momentum() -> None:
    """torch's order in HeteroFL's code: clip_grad_norm_ on loss and proximal term, then SGD with weight decay."""
    theta, norms = start(RUN), []

    def direction(w: Array, x: Array, y: Array) -> Array:
        g = gradient(w, x, y) + 0.5 * (w - theta)
        norms.append(np.linalg.norm(g))
        return g * min(1.0, 0.55 / norms[-1]) + 0.3 * w

    expected = descend(direction, 0.5)
    assert min(norms) < 0.55 < max(norms)
    close(result({"clip": 0.55, "weight_decay": 0.3, "prox_mu": 0.5, "momentum": 0.5}), expected)


def test_decay_and_clipping_come_after_sam() -> None:
    """The ascent uses only the gradient of the loss. Decay and clipping use w, not w~."""

    def direction(w: Array, x: Array, y: Array) -> Array:
        g = gradient(w, x, y)
        g = gradient(w + 0.3 * g / np.linalg.norm(g), x, y)
        return g * min(1.0, 0.4 / np.linalg.norm(g)) + 0.3 * w

    close(result({"sam_rho": 0.3, "clip": 0.4, "weight_decay": 0.3}), descend(direction))


def test_label_masked_loss_sets_absent_logits_to_zero() -> None:
    """HeteroFL: absent logits are 0, not minus infinity. So the softmax has exp(0), and their rows get no gradient."""
    absent = 2
    x, y = X[absent != Y], Y[absent != Y]
    trainer = Trainer(RUN.traced, replace(RUN.method.local, label_masked=True, batch_size=99, epochs=1), seed=SEED)
    task = Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0)
    got = trainer.train(task, x, y)

    theta = start(RUN)
    _, hidden, logits = forward(theta, x, WIDTHS)
    (_, _), (w2, _) = layers(theta, WIDTHS)
    logits[:, absent] = 0
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert got.loss == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), abs=1e-6)
    error = (p - np.eye(CLASSES)[y]) / len(y)
    error[:, absent] = 0
    back = (error @ w2) * (hidden > 0)
    g = np.concatenate([(back.T @ x).ravel(), back.sum(axis=0), (error.T @ hidden).ravel(), error.sum(axis=0)])
    close(got.params, theta - LR * g)


@pytest.mark.parametrize("label_shares", [None, np.arange(1, CLASSES + 1) / sum(range(1, CLASSES + 1))])
@pytest.mark.parametrize("share", [0.75, 1.0])
def test_logit_calibration_adds_the_log_of_the_label_shares(
    share: float, label_shares: npt.NDArray[np.float64] | None
) -> None:
    """Cross-entropy of logits + log((share * p + (1 - share) * q) / q); its gradient is softmax minus the label."""
    absent = 2
    x, y = X[absent != Y], Y[absent != Y]
    settings = ModelSettings(label_shares=None if label_shares is None else tuple(label_shares.tolist()))
    trainer = Trainer(
        RUN.traced,
        replace(RUN.method.local, logit_calibration=share, batch_size=99, epochs=1),
        seed=SEED,
        model=settings,
    )
    got = trainer.train(Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0), x, y)

    theta = start(RUN)
    _, hidden, logits = forward(theta, x, WIDTHS)
    (_, _), (w2, _) = layers(theta, WIDTHS)
    q = np.full(CLASSES, 1 / CLASSES) if label_shares is None else label_shares
    mixed = share * np.array([np.mean(y == label) for label in range(CLASSES)]) + (1 - share) * q
    assert mixed[absent] == pytest.approx((1 - share) * q[absent])
    p = np.maximum(mixed, 1e-3 / len(y)) / q * np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    assert got.loss == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), abs=1e-6)
    error = (p - np.eye(CLASSES)[y]) / len(y)
    back = (error @ w2) * (hidden > 0)
    g = np.concatenate([(back.T @ x).ravel(), back.sum(axis=0), (error.T @ hidden).ravel(), error.sum(axis=0)])
    close(got.params, theta - LR * g)


def test_calibration_has_no_effect_if_label_shares_are_global() -> None:
    task = Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0)
    local = replace(RUN.method.local, batch_size=99, epochs=1)
    y = np.array([0, 0, 0, *range(1, CLASSES)])
    settings = ModelSettings(label_shares=tuple((np.bincount(y, minlength=CLASSES) / len(y)).tolist()))
    plain, calibrated = (
        Trainer(RUN.traced, replace(local, logit_calibration=share), seed=SEED, model=settings).train(
            task, X[: len(y)], y
        )
        for share in (0.0, 1.0)
    )
    close(calibrated.params, plain.params)


@pytest.mark.parametrize("terms", [{}, {"momentum": 0.9, "prox_mu": 0.5}, {"sam_rho": 0.3}])
def test_terms_under_a_mask_follow_the_formula(terms: dict[str, float]) -> None:
    """Absent coordinates are 0 in every forward pass and in the update."""
    got = result(terms, mask=MASK)
    close(got, sgd(RUN.params, minibatches(RUN, 0, 0), WIDTHS, lr=LR, mask=MASK, **terms))
    assert not got[~MASK].any()


def test_masked_decay_leaves_absent_coordinates_at_zero() -> None:
    assert not result({"weight_decay": 0.3, "momentum": 0.9, "clip": 0.5}, mask=MASK)[~MASK].any()


@pytest.mark.parametrize(
    ("terms", "extras", "transform"),
    [
        ({"control": True}, "control", lambda g: g + CONTROL),
        ({"grad_mix": 0.1}, "momentum", lambda g: 0.1 * g + 0.9 * CONTROL),
    ],
)
def test_corrections_under_a_mask_follow_the_formula(
    terms: dict[str, Any], extras: str, transform: Callable[[Array], Array]
) -> None:
    """The control variate and the server's momentum are applied only on trained coordinates."""
    got = result(terms, mask=MASK, extras={extras: CONTROL})
    close(got, sgd(RUN.params, minibatches(RUN, 0, 0), WIDTHS, lr=LR, mask=MASK, transform=transform))
    assert not got[~MASK].any()


def test_masked_sam_moves_by_rho_over_trained_coordinates_only() -> None:
    trainer = Trainer(RUN.traced, replace(RUN.method.local, sam_rho=0.3, steps=1), seed=SEED)
    seen: list[np.ndarray] = []
    trainer._model(WHOLE).module.register_forward_pre_hook(
        lambda module, inputs: seen.append(flatten_parameters(module))
    )
    trainer.train(Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0, mask=MASK), X, Y)
    away = seen[1] - seen[0]
    assert np.linalg.norm(away) == pytest.approx(0.3, rel=1e-5)
    assert not away[~MASK].any()
    x, y = next(minibatches(RUN, 0, 0))
    direction = loss_gradient(start(RUN), x, y, WIDTHS, MASK)[1]
    close(away, 0.3 * direction / np.linalg.norm(direction))


def test_full_gradient_is_at_the_received_weights_over_the_whole_shard() -> None:
    task = Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0)
    solver = replace(RUN.method.local, full_gradient=True)
    got = Trainer(RUN.traced, solver, seed=SEED).train(task, X, Y).extras["gradient"]
    close(got, gradient(start(RUN), X, Y))


def test_adversary_takes_one_ascent_step_minus_its_penalties() -> None:
    """The linear loss sum_b a . x'_b has the gradients sum_b a x_b by L and n a by d."""
    a = torch.tensor([1.0, -2.0, 0.5])
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    adversary = Adversary(torch.tensor([1.1, 1.0, 1.0, 0.0, 0.2, 0.0]), torch.Size([FEATURES]))
    adversary.ascend_loss((adversary.perturb_inputs(x) @ a).sum())
    scale = [1.1 + 0.001 * (5 - 200 * 0.1), 1 + 0.001 * -14, 1 + 0.001 * 4.5]
    shift = [0.025 * 2, 0.2 + 0.025 * (-4 - 8 * 0.2), 0.025 * 1]
    close(adversary.state.detach().numpy(), np.array(scale + shift))
    close(adversary.perturb_inputs(x).detach().numpy(), x.numpy() * scale + shift)


def test_adversary_ascends_the_summed_loss_of_the_batch() -> None:
    """The ascent uses the batch's summed loss: NumPy's input gradient of the mean, times the batch size."""
    task = Task(0, 0, 0, 0, 0, 0, WHOLE, RUN.params, LR, 1.0, extras={ADVERSARY_KEY: np.float32([1, 1, 1, 0, 0, 0])})
    solver = replace(RUN.method.local, adversary=True, steps=1)
    got = Trainer(RUN.traced, solver, seed=SEED).train(task, X, Y).extras[ADVERSARY_KEY]
    x, y = next(minibatches(RUN, 0, 0))
    back = gradients(start(RUN), x, y, WIDTHS)[2] * len(y)
    close(got, np.concatenate([1 + 0.001 * (back * x).sum(axis=0), 0.025 * back.sum(axis=0)]))


@pytest.mark.parametrize("mask", [None, MASK])
def test_compression_applies_only_to_the_delta(mask: np.ndarray | None) -> None:
    """The server gets the received weights plus the compressed delta of the trained coordinates."""
    plain = result({}, mask=mask)
    arrived = result({"compressor": "topk:0.25"}, mask=mask)
    covered = np.ones(SIZE, bool) if mask is None else mask
    received = RUN.params * covered
    delta = np.abs(plain - received)
    kept = np.argsort(-delta)[: round(0.25 * covered.sum())]
    expected = received.copy()
    expected[kept] = plain[kept]
    close(arrived, expected)


@pytest.mark.parametrize(
    ("spec", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125, 0.0625]),
        ("steps:1,3:0.1", [1, 0.1, 0.1, 0.01, 0.01]),
        # The factors are (1 + cos(60 degrees)) / 2 and (1 + cos(120 degrees)) / 2. The last one is not 0.
        ("cosine:3", [1, 0.75, 0.25, 0.25, 0.25]),
    ],
)
def test_lr_schedules_have_the_expected_factors(spec: str, factors: list[float]) -> None:
    assert [lr_schedule(spec)(step) for step in range(5)] == pytest.approx(factors, rel=1e-9)


@pytest.mark.parametrize(
    "spec",
    ["linear", "constant:1", "exponential", "exponential:0", "exponential:1.1", "steps:5", "steps:a:0.1", "cosine:0"],
)
def test_bad_schedules_are_refused(spec: str) -> None:
    with refuses("lr_schedule", got=spec):
        lr_schedule(spec)


def test_server_momentum_divides_by_the_scheduled_rate_of_the_round() -> None:
    """FedCM: Delta <- -mean Delta_i / (eta_l T) with the eta_l of this round, not of the previous round."""
    run = spec("fedcm", lr_schedule="exponential:0.5", partition="iid")
    theta, delta, turn_steps = start(run), np.zeros(SIZE), 2 * np.ceil(20 / 6)
    stepped = Stepped(run)
    for turn in range(3):
        lr = LR * 0.5**turn
        assert {task.lr for task in stepped.round()} == {lr}
        w = [
            sgd(theta, minibatches(run, n, turn), WIDTHS, lr=lr, transform=lambda g, d=delta: 0.1 * g + 0.9 * d)
            for n in range(3)
        ]
        delta = np.mean(w, axis=0) - theta
        theta, delta = theta + delta, -delta / (lr * turn_steps)
        close(stepped.server.params, theta)


@pytest.mark.parametrize("masking", [{}, {"mask": MASK}, {"mask": MASK, "keeps_rest": True}])
def test_term_that_an_algorithm_adds_knows_the_received_weights(masking: dict[str, Any]) -> None:
    close(result({"algorithm": Pulled()}, **masking), result({"prox_mu": 0.5}, **masking))


@dataclass(frozen=True)
class Pulled(LocalAlgorithm):
    """Local training with the proximal term of FedProx."""

    def train(self, run: LocalRun) -> None:
        run.add_transform(Proximal(0.5))
        super().train(run)


def test_default_local_training_without_momentum_is_plain_sgd() -> None:
    """Local training with the defaults and without momentum is plain SGD."""
    close(result(vars(LocalTraining(lr=LR, momentum=0.0, batch_size=6, epochs=2))), descend(gradient))
