"""DepthFL on a network with two hidden layers of 5 and 4 units, against PyTorch's autograd and losses by definition."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from tiny import CLASSES, FEATURES, LR, Stepped, close, minibatches, spec
from torch import Tensor, nn

from fedraa.client.last_call import LastCall
from fedraa.methods.depthfl import SelfDistillation, _exit_losses
from fedraa.models.exits import EarlyExits, early_exits, limit_depth
from fedraa.objectives import Classification

WIDE, NARROW = 5, 4
FIRST = FEATURES * WIDE + WIDE
SECOND = WIDE * NARROW + NARROW + NARROW * CLASSES + CLASSES
EXIT = WIDE * CLASSES + CLASSES
FIELDS: dict[str, Any] = {"model": "mlp-exits", "hidden": (WIDE, NARROW), "capacities": (0.5, 1.0, 1.0)}


def exits(theta: Tensor, x: Tensor, depth: int) -> list[Tensor]:
    """Return the logits of the exits. The parameters are those of both blocks, and then of the first exit."""
    parts = theta.split([15, 5, 20, 4, 16, 4, 20, 4])
    w1, b1, w2, b2, w3, b3, w4, b4 = parts
    hidden = torch.relu(x @ w1.view(WIDE, FEATURES).T + b1)
    logits = [hidden @ w4.view(CLASSES, WIDE).T + b4]
    if depth == 2:
        hidden = torch.relu(hidden @ w2.view(NARROW, WIDE).T + b2)
        logits.append(hidden @ w3.view(CLASSES, NARROW).T + b3)
    return logits


def loss_of(logits: list[Tensor], y: Tensor, kd: float) -> Tensor:
    """Return sum CE + kd / (L - 1) * sum of sum_k p_j (log p_j - log p_l), where p_j is constant."""
    total = torch.zeros((), dtype=torch.float64)
    for number, mine in enumerate(logits):
        log_p = mine - mine.exp().sum(1, keepdim=True).log()
        total = total - log_p[torch.arange(len(y)), y].mean()
        for other, theirs in enumerate(logits):
            if other != number:
                log_q = (theirs - theirs.exp().sum(1, keepdim=True).log()).detach()
                total = total + kd / (len(logits) - 1) * (log_q.exp() * (log_q - log_p)).sum(1).mean()
    return total


def test_rounds_follow_the_formula() -> None:
    run = spec("depthfl", **FIELDS, override={"local.algorithm.ramp_up": 4})
    stepped, theta = Stepped(run), torch.from_numpy(run.params).double()
    for turn in range(3):
        kd = np.exp(-5 * (1 - min(turn, 4) / 4) ** 2)
        deltas = []
        for client, depth in enumerate((1, 2, 2)):
            w = theta.clone()
            for x, y in minibatches(run, client, turn):
                w.requires_grad_(True)
                loss_of(exits(w, torch.from_numpy(x).double(), depth), torch.from_numpy(y), kd).backward()
                w = (w - LR * w.grad).detach()
            deltas.append(w - theta)
        counts = torch.full((len(theta),), 3.0, dtype=torch.float64)
        counts[FIRST : FIRST + SECOND] = 2
        theta = theta + torch.stack(deltas).sum(0) / counts
        stepped.round()
        close(stepped.server.params, theta.numpy())


class Squared(Classification):
    """Classification with the squared cross-entropy of each sample."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets) ** 2


def test_all_exits_learn_with_the_loss_of_the_objective() -> None:
    run = spec("depthfl", **FIELDS, objective=Squared())
    stepped, theta = Stepped(run), torch.from_numpy(run.params).double()
    kd = np.exp(-5)
    for client, depth in enumerate((1, 2, 2)):
        w = theta.clone()
        for x, y in minibatches(run, client, 0):
            w.requires_grad_(True)
            labels = torch.from_numpy(y)
            logits = exits(w, torch.from_numpy(x).double(), depth)
            entropies = [nn.functional.cross_entropy(mine, labels, reduction="none") for mine in logits]
            loss = loss_of(logits, labels, kd)
            for entropy in entropies:
                loss = loss - entropy.mean() + (entropy**2).mean()
            loss.backward()
            w = (w - LR * w.grad).detach()
        task = stepped.server.assign(client, 0.0)
        mask = np.ones(task.size, bool) if task.mask is None else task.mask
        close(stepped.train(task).params[mask], w.numpy()[mask])


def test_rounds_with_feddyn_follow_the_formula() -> None:
    """h <- h - alpha * (sum of deltas) / N and theta <- mean - h / alpha, for each tensor."""
    run, alpha = spec("depthfl-feddyn", **FIELDS, prox_mu=0.3), 0.3
    stepped, theta = Stepped(run), torch.from_numpy(run.params).double()
    h, drifts = torch.zeros_like(theta), torch.zeros(3, len(theta), dtype=torch.float64)
    for turn in range(2):
        kd = np.exp(-5 * (1 - turn / 300) ** 2)
        deltas = torch.zeros(3, len(theta), dtype=torch.float64)
        for client, depth in enumerate((1, 2, 2)):
            w = theta.clone()
            for x, y in minibatches(run, client, turn):
                w.requires_grad_(True)
                loss = loss_of(exits(w, torch.from_numpy(x).double(), depth), torch.from_numpy(y), kd)
                loss = loss - drifts[client] @ w + alpha / 2 * ((w - theta) ** 2).sum()
                (g,) = torch.autograd.grad(loss, w)
                g[FIRST : FIRST + SECOND] *= depth == 2
                w = (w - LR * g).detach()
            deltas[client] = w - theta
            drifts[client] -= alpha * deltas[client]
        counts = torch.full((len(theta),), 3.0, dtype=torch.float64)
        counts[FIRST : FIRST + SECOND] = 2
        h = h - alpha * deltas.sum(0) / 3
        theta = theta + deltas.sum(0) / counts - h / alpha
        stepped.round()
        np.testing.assert_allclose(stepped.server.params, theta.numpy(), atol=5e-6)


def test_exits_learn_from_the_mean_over_all_other_exits() -> None:
    """With three exits the weight of a pair is kd / 2. The deepest exit is first, and its own loss is not included."""
    logits = list(torch.randn(3, 6, CLASSES, generator=torch.Generator().manual_seed(0)))
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    call = LastCall()
    call.result = logits
    wide = [values.double() for values in logits]
    expected = loss_of(wide, y, 0.7) - nn.functional.cross_entropy(wide[0], y)
    loss = partial(nn.functional.cross_entropy, target=y)
    torch.testing.assert_close(_exit_losses(call, loss, 0.7).double(), expected)


def test_weight_of_the_distillation_rises_to_1() -> None:
    weight = SelfDistillation().distillation_weight
    np.testing.assert_allclose([weight(round) for round in (0, 100, 300, 900)], [0.006738, 0.108368, 1, 1], atol=1e-6)


def test_costs_count_only_the_trained_blocks() -> None:
    stepped = Stepped(spec("depthfl", **FIELDS))
    tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
    for task in tasks:
        stepped.server.commit(stepped.train(task), 1.0)
    # Products of a sample: forward, gradients of the weights, and gradients of inputs except those of the samples.
    one = 3 * 2 * (15 + 20) - 2 * 15
    both = 3 * 2 * (15 + 20 + 20 + 16) - 2 * 15
    sizes = stepped.run.data.sizes
    flops = [line["flops"] / (2 * sizes[line["client"]]) for line in stepped.records.of("commit")]
    np.testing.assert_allclose(flops, [one, both, both])
    assert [task.bytes_up for task in tasks] == [4 * (FIRST + EXIT), 4 * 88, 4 * 88]
    assert [line["bytes_down"] for line in stepped.records.of("dispatch")] == [4 * (FIRST + EXIT), 4 * 88, 4 * 88]


def test_tensors_that_no_client_trains_stay_unchanged() -> None:
    stepped = Stepped(spec("depthfl", **FIELDS | {"capacities": (0.5,)}))
    before = stepped.server.params.copy()
    stepped.round()
    moved = stepped.server.params != before
    assert moved[:FIRST].any()
    assert moved[-EXIT:].all()
    assert not moved[FIRST : FIRST + SECOND].any()


def test_model_without_early_exits_is_refused() -> None:
    for method in ("depthfl", "depthfl-feddyn", "depthfl+fedprox"):
        with refuses("method", "--model resnet18-exits", "fedavg", got=method):
            spec(method)
    with refuses("submodel", "--model resnet18-exits", got="first-blocks"):
        spec("fedavg", submodel="first-blocks")
    # With one hidden layer, mlp-exits has only one classifier.
    with refuses("method", "two or more hidden layers"):
        spec("depthfl", **FIELDS | {"hidden": (5,)})


@pytest.mark.parametrize("frozen", [False, True])
def test_client_trains_an_exit_after_a_block_without_trained_parameters(frozen: bool) -> None:
    """The second block is a ReLU, or a frozen layer. A client of depth 2 trains its exit."""
    second = nn.Linear(5, 5).requires_grad_(False) if frozen else nn.ReLU()
    model = early_exits(nn.Sequential(nn.Linear(3, 5), second, nn.Linear(5, 2)), torch.zeros(4, 3), (1, 2))
    for depth in (1, 2, 3):
        of_client = [int(name.split(".")[1]) < depth for name, p in model.named_parameters() if p.requires_grad]
        sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        limit_depth(model, np.repeat(of_client, sizes))
        assert model.depth == depth


def test_prediction_is_the_mean_of_the_logits_of_all_exits() -> None:
    layers = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(6, 3)
    model = early_exits(layers, x, (2,))
    own = layers(x)
    first = model.exits[0](layers[:2](x))
    model.train()
    assert [torch.equal(mine, expected) for mine, expected in zip(model(x), (own, first), strict=True)] == [True] * 2
    model.eval()
    torch.testing.assert_close(model(x), (own + first) / 2)


def test_pixels_are_averaged_before_an_exit() -> None:
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(5, 1, 4, 4)
    model = early_exits(layers, x, (1,))
    _, first = model.train()(x)
    classifier = model.exits[0][-1]
    torch.testing.assert_close(first, layers[0](x).mean((2, 3)) @ classifier.weight.T + classifier.bias)


@pytest.mark.parametrize("after", [(0,), (3,), (2, 1)])
def test_exits_outside_of_the_model_are_refused(after: tuple[int, ...]) -> None:
    with refuses("after"):
        early_exits(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(2, 3), after)
    with refuses("exits"):
        EarlyExits([nn.Identity()], [])


def test_other_local_training_uses_the_deepest_exit_of_the_client() -> None:
    """A client of depth 1 trains the first exit, and clients of depth 2 the second only."""
    run = spec("depthfl+fedprox", **FIELDS, prox_mu=0.0, momentum=0.0)
    stepped = Stepped(run)
    for client, depth in enumerate((1, 2, 2)):
        task = stepped.server.assign(client, 0.0)
        w = torch.from_numpy(task.params).double()
        for x, y in minibatches(run, client, 0):
            w.requires_grad_(True)
            logits = exits(w, torch.from_numpy(x).double(), depth)[-1]
            nn.functional.cross_entropy(logits, torch.from_numpy(y)).backward()
            w = (w - LR * w.grad).detach()
        mask = np.ones(task.size, bool) if task.mask is None else task.mask
        close(stepped.train(task).params[mask], w.numpy()[mask])
