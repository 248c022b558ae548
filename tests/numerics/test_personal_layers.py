"""Personal layers against steps by hand, and the masks of their names; f_i(s, p) = 0.5 (s + p - t_i)^2."""

from typing import Any

import numpy as np
import pytest
import torch
from quadratic import Pair, close, kept, quadratic, train_round
from refusals import refuses
from tiny import Stepped, minibatches, spec
from torch import nn
from torch.nn.utils import parametrizations

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_worker_spec
from fedraa.submodels import flatten_parameters
from fedraa.submodels.personal_layers import find_personal, personal_mask
from fedraa.submodels.traced import Traced
from fedraa.submodels.whole import take_whole

TARGETS, SIZES = (1.0, -2.0), (3, 1)


def test_fedper_trains_both_parts_and_shares_one() -> None:
    stepped = quadratic("fedper", TARGETS, SIZES, Pair(), local_steps=2)
    stepped.round()
    close(kept(stepped, "personal_layers"), [[0.18], [-0.36]])
    close(stepped.server.params, [0.045, 0])
    stepped.round()
    close(kept(stepped, "personal_layers"), [[0.3195], [-0.6633]])
    close(stepped.server.params, [0.0738, 0])


def test_fedrep_trains_the_head_and_then_the_body() -> None:
    fields: dict[str, Any] = {"local_epochs": 1, "override": {"local.algorithm.head_epochs": 2}}
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), **fields)
    stepped.round()
    close(kept(stepped, "personal_layers"), [[0.19], [-0.38]])
    close(stepped.server.params, [0.02025, 0])
    stepped.round()
    close(kept(stepped, "personal_layers"), [[0.3400525], [-0.6916475]])
    close(stepped.server.params, [0.03501225, 0])


def test_steps_on_the_head_do_not_count_for_an_adaptive_rate() -> None:
    """Both halves of the steps on the body have the same direction. The head has moved far before."""
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), local_epochs=4, lr_schedule="adaptive")
    update = stepped.train(stepped.server.assign(0, 0.0))
    assert update.extras["kept_personal_layers"][0] > update.params[0] > 0
    assert update.cosine == pytest.approx(1)


def test_steps_on_the_head_do_not_count_for_distances_of_the_body() -> None:
    """The first rate of DoG is 0.1 (1 + |x_0|) / |g|, where x_0 are the weights before the steps on the body."""
    fields: dict[str, Any] = {"local_optimizer": "dog(alpha=0.1)", "lr": None, "local_epochs": 1}
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), **fields)
    update = stepped.train(stepped.server.assign(0, 0.0))
    [head] = update.extras["kept_personal_layers"]
    assert head > 0.2
    close(update.params, [0.1 * (1 + head), 0])


def test_frozen_part_does_not_move_by_momentum_or_decay() -> None:
    fields: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.5, "local_epochs": 3}
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), **fields)
    task = stepped.server.assign(0, 0.0)
    update = stepped.train(task)
    # By hand: three steps of SGD with momentum on s, at the head that the ten epochs before have reached.
    head, velocity = 0.0, 0.0
    for _ in range(10):
        velocity = 0.9 * velocity + (head - 1) + 0.5 * head
        head -= 0.1 * velocity
    close(update.extras["kept_personal_layers"], [head])
    body, velocity = 0.0, 0.0
    for _ in range(3):
        velocity = 0.9 * velocity + (body + head - 1) + 0.5 * body
        body -= 0.1 * velocity
    close(update.params, [body, 0])


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_frozen_part_does_not_count_for_the_norm_of_a_clipped_gradient(mu: float) -> None:
    """The proximal term of the body has no part for the head, although the head is no longer the received one."""
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), local_epochs=4, clip=0.3, prox_mu=mu)
    update = stepped.train(stepped.server.assign(0, 0.0))
    # By hand: the gradient of one number at a time is shortened to 0.3.
    head = 0.0
    for _ in range(10):
        head -= 0.1 * max(-0.3, head - 1)
    close(update.extras["kept_personal_layers"], [head])
    body = 0.0
    for _ in range(4):
        body -= 0.1 * max(-0.3, body + head - 1 + mu * body)
    close(update.params, [body, 0])


def test_frozen_part_does_not_count_for_the_rate_of_delta_sgd() -> None:
    """The gradient of the body has the slope 1 + 0.5 by the weight decay, so the second rate is 1 / 1.5."""
    fields: dict[str, Any] = {"local_optimizer": "delta-sgd", "weight_decay": 0.5, "lr": 1.0}
    stepped = quadratic("fedrep", TARGETS, SIZES, Pair(), local_epochs=2, **fields)
    update = stepped.train(stepped.server.assign(0, 0.0))
    [head] = update.extras["kept_personal_layers"]
    assert abs(head) > 0.1
    body = -(head - 1)
    close(update.params, [body - (1.5 * body + head - 1) / 1.5, 0])


@pytest.mark.parametrize("aggregator", ["norm-bound(max_norm=0.1)", "centred-clipping(radius=0.1)"])
@pytest.mark.parametrize("fields", [{"method": "fedavg"}, {"method": "fedbuff", "buffer_size": 2}], ids=str)
def test_norm_bound_applies_only_to_the_shared_layers(aggregator: str, fields: dict[str, Any]) -> None:
    more: dict[str, Any] = {"aggregator": aggregator, "personal_layers": ("body",), "local_steps": 2}
    stepped = quadratic(targets=(1.0, -0.25), model=Pair(), **fields, **more)
    train_round(stepped)
    # The deltas of the head are 0.18, which is shortened to 0.1, and -0.045.
    close(stepped.server.params, [0, (0.1 - 0.045) / 2])


def test_lg_fedavg_shares_the_last_layer() -> None:
    stepped = quadratic("lg-fedavg", TARGETS, SIZES, Pair(), local_steps=2)
    stepped.round()
    close(kept(stepped, "personal_layers"), [[0.18], [-0.36]])
    close(stepped.server.params, [0, 0.045])


def test_failed_task_does_not_change_kept_values() -> None:
    stepped = quadratic("fedper", TARGETS, SIZES, Pair(), local_steps=2)
    stepped.round()
    before = kept(stepped, "personal_layers").copy()
    task = stepped.server.assign(0, 0.0)
    stepped.train(task)
    stepped.server.drop(task.id, "it failed", 1.0)
    np.testing.assert_array_equal(kept(stepped, "personal_layers"), before)


def train_in_plain_pytorch(run: Any, client: int, turn: int, shared: np.ndarray, head: np.ndarray | None) -> np.ndarray:
    """Return the model [d] of a client after a plain PyTorch loop; its last layer starts from `head`."""
    module = run.traced.make_skeleton(run.traced.widths(run.traced.full()))
    values = shared.copy()
    if head is not None:
        values[-len(head) :] = head
    torch.nn.utils.vector_to_parameters(torch.from_numpy(values), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=run.experiment.lr)
    for x, y in minibatches(run, client, turn):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return flatten_parameters(module)


def test_fedper_equals_a_pytorch_loop() -> None:
    run = spec("fedper", momentum=0.0)
    stepped = Stepped(run)
    assert run.shared is not None
    count = int((~run.shared).sum())
    assert count == 5 * 4 + 4
    shared = run.params.copy()
    heads = [run.params[-count:].copy() for _ in range(3)]
    weights = run.data.sizes / run.data.sizes.sum()
    for turn in range(3):
        stepped.round()
        models = [train_in_plain_pytorch(run, client, turn, shared, heads[client]) for client in range(3)]
        heads = [model[-count:] for model in models]
        shared[:-count] = np.average([model[:-count] for model in models], axis=0, weights=weights)
        np.testing.assert_allclose(stepped.server.params, shared, atol=1e-6)
        np.testing.assert_allclose(kept(stepped, "personal_layers"), heads, atol=1e-6)


def test_personal_layers_are_neither_sent_nor_counted_as_traffic() -> None:
    whole, personal = Stepped(spec("fedavg", momentum=0.0)), Stepped(spec("fedper", momentum=0.0))
    tasks = [stepped.server.assign(0, 0.0) for stepped in (whole, personal)]
    assert tasks[0].bytes_up - tasks[1].bytes_up == 4 * 24
    update = personal.train(tasks[1])
    np.testing.assert_array_equal(update.params[-24:], tasks[1].params[-24:])
    assert np.abs(update.params[:-24] - tasks[1].params[:-24]).max() > 0


@pytest.mark.parametrize("method", ["fed-raa", "fed-quilt", "fedasync", "fedbuff", "heterofl", "scaffold"])
def test_server_never_moves_personal_layers(method: str) -> None:
    stepped = Stepped(spec(method, personal_layers=("last-layer",)))
    start = stepped.server.params.copy()
    shared = stepped.run.shared
    assert shared is not None
    waiting = list(stepped.server.begin())
    for _ in range(12):
        if waiting:
            tasks = [stepped.server.assign(client, 0.0) for client in waiting]
            waiting = []
        if tasks:
            waiting += stepped.server.commit(stepped.train(tasks.pop()), 1.0)
    np.testing.assert_array_equal(stepped.server.params[~shared], start[~shared])
    assert (stepped.server.params[shared] != start[shared]).any()
    rows = kept(stepped, "personal_layers")
    assert np.nanmax(np.abs(rows - start[~shared])) > 0


def test_evaluation_uses_the_layers_of_each_client() -> None:
    stepped = quadratic("fedper", TARGETS, SIZES, Pair(), local_steps=2)
    evaluator = make_worker_spec(stepped.run).evaluator(stepped.run.evaluation_data, "cpu")
    states = stepped.server.task_table.client_states

    def personal_mean() -> float:
        rows = states.copy_rows(stepped.run.personal_clients)
        return evaluator.evaluate(stepped.server.params, rows).metrics["personal_mean"]

    data = stepped.run.data
    tested = np.split(data.dataset.y_test[data.test_order], data.test_offsets[1:-1])
    # Before training the outputs are 0.
    assert personal_mean() == pytest.approx(np.mean([np.mean(0.5 * y**2) for y in tested]))
    stepped.round()
    losses = [np.mean(0.5 * (0.045 + head - y) ** 2) for head, y in zip((0.18, -0.36), tested, strict=True)]
    assert losses[0] != losses[1]
    assert personal_mean() == pytest.approx(np.mean(losses))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        # A batch norm whose name does not show its type, as in the shortcuts of a ResNet.
        self.shortcut = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.shortcut(self.body(x)))
        return output


def named() -> Traced:
    return take_whole(Named(), torch.ones(4, 3))


BIASES = {"body.0.bias", "body.1.bias", "shortcut.0.bias", "shortcut.1.bias", "head.bias"}
WEIGHTS = {name.replace("bias", "weight") for name in BIASES}
HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["head"], HEAD),
        (["head.*"], HEAD),
        (["last-layer"], HEAD),
        (["*.bias", "head.weight"], BIASES | HEAD),
        (["batch-norm"], {"body.1.weight", "body.1.bias", "shortcut.1.weight", "shortcut.1.bias"}),
        (["all-but-last-layer"], (BIASES | WEIGHTS) - HEAD),
    ],
)
def test_patterns_choose_parameters_by_name_module_and_type(patterns: list[str], names: set[str]) -> None:
    traced = named()
    assert find_personal(traced, patterns) == names
    mask = personal_mask(traced, frozenset(names), traced.module)
    expected = [np.full(p.numel(), name in names) for name, p in Named().named_parameters()]
    np.testing.assert_array_equal(mask, np.concatenate(expected))


def traced_tokens(*, tied_bias: bool) -> Traced:
    """Return a model of tokens whose output layer has the weight of the embedding."""
    model = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 6, bias=tied_bias))
    model[3].weight = model[0].weight
    return take_whole(model, torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("pattern", ["last-layer", "3", "3.*"])
def test_tied_weight_is_personal_with_each_of_its_layers(pattern: str) -> None:
    assert find_personal(traced_tokens(tied_bias=True), [pattern]) == {"0.weight", "3.bias"}
    assert find_personal(traced_tokens(tied_bias=False), [pattern]) == {"0.weight"}


def test_all_but_the_last_layer_leaves_out_a_tied_weight() -> None:
    assert find_personal(traced_tokens(tied_bias=True), ["all-but-last-layer"]) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_last_layer_with_a_parametrized_weight_is_personal_with_its_bias(parametrize: Any) -> None:
    """The bias of a parametrized layer has the module's name, the weight has that of the parametrization."""
    body, head = nn.Linear(3, 4), parametrize(nn.Linear(4, 2))
    traced = take_whole(nn.Sequential(body, head), torch.zeros(2, 3))
    names = {f"1.{name}" for name, _ in head.named_parameters()}
    assert "1.bias" in names
    assert find_personal(traced, ["last-layer"]) == names
    assert find_personal(traced, ["all-but-last-layer"]) == {"0.weight", "0.bias"}


def test_scale_of_a_parametrized_batch_norm_is_personal() -> None:
    norm = parametrizations.weight_norm(nn.BatchNorm1d(4), dim=None)
    traced = take_whole(nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2)), torch.zeros(2, 3))
    assert find_personal(traced, ["batch-norm"]) == {f"1.{name}" for name, _ in norm.named_parameters()}


def test_frozen_layer_is_refused_as_a_personal_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    traced = take_whole(model, torch.zeros(2, 3))
    with refuses("personal_layers", "0.weight", "frozen", got="0"):
        find_personal(traced, ["0"])


@pytest.mark.parametrize("pattern", ["haed", "*", "shortcut.1.running_mean", "head.weights"])
def test_pattern_that_matches_no_layer_or_all_layers_is_refused(pattern: str) -> None:
    with refuses("personal_layers", got=pattern):
        find_personal(named(), [pattern])


def test_prunefl_does_not_prune_personal_layers() -> None:
    """Clients train and evaluate all weights of their last layer, and the server does not change its own ones."""
    override = {"submodel.initial": 0, "submodel.reprune_every": 1}
    run = spec("prunefl+fedrep", partition="iid", rounds=3, override=override)
    stepped = Stepped(run)
    assert run.shared is not None
    for _ in range(3):
        [task, *_] = stepped.round()
        assert task.mask is not None
        assert task.mask[~run.shared].all()
        assert not task.mask[run.shared].all()
    np.testing.assert_array_equal(stepped.server.params[~run.shared], run.params[~run.shared])


def test_error_suggests_no_module_without_parameters() -> None:
    """Module 0 of the mlp is Flatten, and its last one, 5, has parameters."""
    with refuses("personal_layers", got="0") as caught:
        spec("fedavg", hidden=(6, 6), personal_layers=("0",))
    assert "did you mean" not in caught.value.hint


def test_personal_batch_norm_is_refused_for_a_model_without_batch_norm() -> None:
    with refuses("method", "--model resnet18-bn", "fedavg", got="fedbn"):
        spec("fedbn")
    for method in ("fedavg", "fedbn"):
        with refuses("personal_layers", got="batch-norm"):
            spec(method, personal_layers=("batch-norm",))


def test_fedbn_with_other_personal_layers_needs_no_batch_norm() -> None:
    run = spec("fedbn", personal_layers=("last-layer",))
    assert [buffer.name for buffer in run.kept_buffers] == ["personal_layers"]


def test_fedbn_keeps_scale_and_shift_at_the_clients() -> None:
    torch.manual_seed(0)
    fields: dict[str, Any] = {"clients": 4, "partition": "labels:3", "engine": "local", "local_steps": 3}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    stepped = Stepped(build_run(fl.Experiment(method="fedbn", **fields), model=model))
    start = stepped.server.params.copy()
    stepped.round()
    shared = stepped.run.shared
    assert shared is not None
    np.testing.assert_array_equal(np.flatnonzero(~shared), 64 * 8 + 8 + np.arange(16))
    rows = kept(stepped, "personal_layers")
    assert rows.shape == (4, 16)
    assert len(np.unique(rows, axis=0)) == 4
    np.testing.assert_array_equal(stepped.server.params[~shared], start[~shared])
    evaluator = make_worker_spec(stepped.run).evaluator(stepped.run.evaluation_data, "cpu")
    states = stepped.server.task_table.client_states.copy_rows(stepped.run.personal_clients)
    assert np.isfinite(evaluator.evaluate(stepped.server.params, states).metrics["personal_mean"])


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("fedcm", {"personal_layers": ("last-layer",)}, "personal_layers"),
        ("mimelite", {"personal_layers": ("last-layer",)}, "personal_layers"),
        ("padamfed", {"personal_layers": ("last-layer",), "rounds": 9}, "personal_layers"),
        ("flora", {"personal_layers": ("last-layer",)}, "personal_layers"),
        ("fed-raa", {"personal_layers": ("last-layer",), "server_shards": 2, "engine": "ray"}, "personal_layers"),
        ("splitfed", {"personal_layers": ("last-layer",)}, "method"),
        ("fedper", {"vmap_batch": 2}, "vmap_batch"),
    ],
)
def test_personal_layers_that_a_method_cannot_keep_are_refused(method: str, fields: dict[str, Any], field: str) -> None:
    with refuses(field):
        build_run(fl.Experiment(method=method, **{"engine": "local", **fields}))
