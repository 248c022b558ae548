"""HetLoRA and FLoRA against numbers computed by hand, and whole rounds against NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy_mlp import Array
from refusals import refuses
from tiny import SAMPLES, Stepped, spec
from torch import nn

import fedraa as fl
from fedraa import Dataset, Experiment
from fedraa.aggregation.adapters import find_adapters
from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.client.trainer import Work
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update
from fedraa.methods.flora import FLoRA
from fedraa.methods.hetlora import HetLoRA
from fedraa.submodels import trace_module
from fedraa.submodels.indices import take_prefix
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import DeltaView

B1, A1 = np.array([[1.0], [0.0]]), np.array([[1.0, 2.0]])
B2, A2 = np.eye(2), np.array([[0.0, 1.0], [1.0, 0.0]])


def two_by_two(*, merge: bool, alpha: float = 2.0) -> RunContext:
    """Return a linear layer [2, 2] with an adapter of rank 2, and its flat vector: A is random, and B is 0."""
    model = fl.lora(nn.Linear(2, 2, bias=False), 2, alpha=alpha, merge=merge)
    traced = trace_module(model, torch.randn(2, 2))
    params = np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters() if p.requires_grad])
    return RunContext(traced, 2, 0, params)


def combine_two_clients(aggregator: Aggregator, run: RunContext, *, masked: bool = False) -> tuple[Array, Array]:
    """Return B and A after a round of two clients: ranks 1 and 2, 1 and 3 samples, and the matrices above."""
    weights = (1.0, 3.0)
    bound = aggregator.bind(run.traced.size, 2)
    bound.see(run)
    params, coverage = run.params, np.zeros(run.traced.size, np.int32)
    assert params is not None
    (pair,) = find_adapters(run.traced)
    for client, (share, b, a) in enumerate([(0.5, B1, A1), (1.0, B2, A2)]):
        full = params.copy()
        full[pair.a] = np.pad(a, ((0, 2 - len(a)), (0, 0))).reshape(-1)
        full[pair.b] = np.pad(b, ((0, 0), (0, 2 - len(a)))).reshape(-1)
        where = run.traced.flat_index(take_prefix(run.traced, share))
        coverage[where] += 1
        # The values outside of the mask must have no effect.
        if masked:
            mask = np.isin(np.arange(len(params)), where)
            change = DeltaView(slice(None), np.where(mask, full, 9).astype(np.float32), params.copy(), mask)
        else:
            change = DeltaView(where, full[where], params[where])
        bound.add(ClientDelta(client, change, weights[client], 0.1))
    delta, moved = bound.finish(RoundTotals(coverage, 0.1))
    params += np.where(moved, delta, 0)
    b, a = pair.read_factors(params)
    return b, a


@pytest.mark.parametrize("masked", [False, True])
def test_hetlora_weighs_by_norm_and_pads_with_zeros(masked: bool) -> None:
    """The norms of B A are sqrt 5 and sqrt 2, so p = (.612574, .387426). B = p1 B1 + p2 B2 and A = p1 A1 + p2 A2."""
    b, a = combine_two_clients(HetLoRA(), two_by_two(merge=False), masked=masked)
    p = np.sqrt([5, 2]) / np.sqrt([5, 2]).sum()
    np.testing.assert_allclose(p, [0.612574, 0.387426], atol=1e-6)
    np.testing.assert_allclose(b, p[0] * np.pad(B1, ((0, 0), (0, 1))) + p[1] * B2, atol=1e-6)
    np.testing.assert_allclose(a, p[0] * np.pad(A1, ((0, 1), (0, 0))) + p[1] * A2, atol=1e-6)
    np.testing.assert_allclose(b @ a, [[0.612574, 1.612574], [0.150099, 0]], atol=1e-6)


@pytest.mark.parametrize(("alpha", "masked"), [(2.0, False), (6.0, True)])
def test_flora_merges_the_stacked_adapters_and_resets_them(alpha: float, masked: bool) -> None:
    """With p = (.25, .75) the weight moves by alpha / 2 [B1 B2] [p1 A1; p2 A2]. Then B is 0, and A is drawn again."""
    run = two_by_two(merge=True, alpha=alpha)
    assert run.params is not None
    before = run.params.copy()
    (pair,) = find_adapters(run.traced)
    b, a = combine_two_clients(FLoRA(), run, masked=masked)
    stacked = np.hstack([B1, B2]) @ np.vstack([0.25 * A1, 0.75 * A2])
    np.testing.assert_allclose(stacked, [[0.25, 1.25], [0.75, 0]])
    np.testing.assert_allclose(run.params[pair.merged].reshape(2, 2), alpha / 2 * stacked, atol=1e-6)
    assert not b.any()
    assert not np.isin(a, before[pair.a]).any()
    assert np.abs(a).max() <= 2**-0.5


def test_flora_does_not_change_the_padding_row_of_an_embedding() -> None:
    """A row of a table [4, 2] changes by B A, transposed.

    The row of padding does not change, also when A is drawn again.
    """
    torch.manual_seed(0)
    model = fl.lora(nn.Embedding(4, 2, padding_idx=1), 2, targets="", merge=True)
    traced = trace_module(model, torch.tensor([[0, 1], [2, 3]]))
    run = RunContext(traced, 1, 0, np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()][1:]))
    bound, (pair,), theta = FLoRA().bind(traced.size, 1), find_adapters(traced), run.params
    assert theta is not None
    bound.see(run)
    b = np.array([[1.0, 2], [3, 4]], np.float32)
    delta = np.zeros_like(theta)
    delta[pair.b] = b.reshape(-1)
    _, a = pair.read_factors(theta)
    assert a.all(axis=0).tolist() == [True, False, True, True]
    bound.add(ClientDelta(0, DeltaView(slice(None), delta), 5.0, 0.1))
    moved, _ = bound.finish(RoundTotals(np.ones(traced.size, np.int32), 0.1))
    assert pair.merged is not None
    np.testing.assert_allclose(moved[pair.merged].reshape(4, 2), (b @ a).T, atol=1e-6)
    _, again = pair.read_factors(theta)
    assert again.all(axis=0).tolist() == [True, False, True, True]
    assert (again != a)[:, [0, 2, 3]].all()


class Recorder(Stepped):
    """A recorder of the tasks and the updates of a round."""

    def __init__(self, run: RunSpec) -> None:
        super().__init__(run)
        self.returned: list[tuple[int, Array, Array]] = []
        commit = self.server.commit

        def record_and_commit(update: Update, now: float) -> Any:
            flight = self.server.task_table.in_flight[update.task]
            where = np.arange(run.traced.size)[flight.assignment.where]
            self.returned.append((update.client, where, update.params.astype(np.float64)))
            return commit(update, now)

        self.server.commit = record_and_commit  # type: ignore[method-assign]


def adapter_run(method: str, *, merge: bool = False, **flags: Any) -> RunSpec:
    """Return a run of three clients with shards of different sizes.

    The adapters and the last layer of an MLP are trained.
    """
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES + 20, 3)).astype(np.float32)
    y = (x @ rng.normal(size=(3, 4))).argmax(axis=1)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    model = fl.lora(plain, 4, train="4", merge=merge, alpha=8)
    common: dict[str, Any] = {"clients": 3, "partition": "dirichlet", "lr": 0.2, "engine": "local", "seed": 7}
    dataset = Dataset("tiny", x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], 4)
    return build_run(Experiment(method=method, **(common | flags)), model=model, dataset=dataset)


def pad_with_zeros(theta: Array, returned: list[tuple[int, Array, Array]]) -> list[Array]:
    full = [np.zeros_like(theta) for _ in returned]
    for each, (_, where, values) in zip(full, returned, strict=True):
        each[where] = values
    return full


def matrices(run: RunSpec, vector: Array, layer: int) -> tuple[Array, Array]:
    """Return B and A of a layer by the names of its tensors."""
    spans = {
        name: vector[offset : offset + int(np.prod(shape))].reshape(shape)
        for name, shape, offset in zip(run.traced.names, run.traced.shapes, run.traced.offsets, strict=True)
    }
    return spans[f"{layer}.lora_B.weight"], spans[f"{layer}.lora_A.weight"]


def plain_mean(run: RunSpec, weights: Array, full: list[Array]) -> dict[str, Array]:
    """Return the mean of the trained parameters that are not adapters. Every client trains them."""
    mean = np.average(full, axis=0, weights=weights)
    layers = zip(run.traced.names, run.traced.shapes, run.traced.offsets, strict=True)
    return {name: mean[at : at + int(np.prod(shape))] for name, shape, at in layers if name.startswith("4.")}


def tensor_of(run: RunSpec, vector: Array, name: str) -> Array:
    at = run.traced.names.index(name)
    offset = run.traced.offsets[at]
    return vector[offset : offset + int(np.prod(run.traced.shapes[at]))]


def test_rounds_of_hetlora_follow_the_formula() -> None:
    """Ranks are 4, 2 and 1.

    All parameters are averaged by p = ||B A|| over both layers. Missing units count as zeros.
    """
    run = adapter_run("hetlora", capacities=(1.0, 0.5, 0.25))
    stepped = Recorder(run)
    for _ in range(3):
        stepped.returned.clear()
        theta = stepped.server.params.astype(np.float64)
        stepped.round()
        full = pad_with_zeros(theta, stepped.returned)
        squares = [sum(np.square(b @ a).sum() for b, a in (matrices(run, w, at) for at in (0, 2))) for w in full]
        p = np.sqrt(squares) / np.sqrt(squares).sum()
        np.testing.assert_allclose(stepped.server.params, np.average(full, axis=0, weights=p), rtol=1e-5, atol=1e-6)
    assert min(p) < 0.9 * max(p)


def test_rounds_of_flora_follow_the_formula() -> None:
    """Ranks are 4, 2 and 1. merged += 2 sum p B A (alpha / rank is 2). The last layer is averaged by samples."""
    run = adapter_run("flora", merge=True, capacities=(1.0, 0.5, 0.25))
    stepped, sizes = Recorder(run), run.data.sizes
    for _ in range(3):
        stepped.returned.clear()
        theta = stepped.server.params.astype(np.float64)
        stepped.round()
        now = stepped.server.params
        full = pad_with_zeros(theta, stepped.returned)
        p = np.array([sizes[client] for client, _, _ in stepped.returned]) / sum(sizes)
        for at in (0, 2):
            pairs = [matrices(run, w, at) for w in full]
            stack = np.hstack([b for b, _ in pairs]) @ np.vstack(
                [share * a for share, (_, a) in zip(p, pairs, strict=True)]
            )
            expected = tensor_of(run, theta, f"{at}.merged") + 2 * stack.reshape(-1)
            np.testing.assert_allclose(tensor_of(run, now, f"{at}.merged"), expected, rtol=1e-5, atol=1e-6)
            assert not tensor_of(run, now, f"{at}.lora_B.weight").any()
        for name, expected in plain_mean(run, p, full).items():
            np.testing.assert_allclose(tensor_of(run, now, name), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(tensor_of(run, now, "0.merged")).max() > 0.01


def test_flora_traffic_counts_adapters_up_and_new_stacks_down() -> None:
    """The adapters are of layers [5, 3] and [6, 5]: 19 numbers per unit of the rank, and 45 after the merge.

    The last layer has 28 numbers. The ranks of the three clients are 4, 2 and 1, so their stack has 7 units.
    """
    run = adapter_run("flora", merge=True, capacities=(1.0, 0.5, 0.25))
    stepped = Stepped(run)
    stepped.round()
    stepped.round()
    up = [4 * (28 + 19 * rank) for rank in (4, 2, 1)]
    assert sorted(line["bytes_up"] for line in stepped.records.of("commit")) == sorted(2 * up)
    down = [line["bytes_down"] for line in sorted(stepped.records.of("dispatch"), key=lambda line: line["task"])]
    assert down[:3] == up
    assert down[3:] == [each + 4 * min(45, 19 * 7) for each in up]


@pytest.mark.parametrize("vmap_batch", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_flora_weight_decay_spares_the_merged_weights(optimizer: str, vmap_batch: int) -> None:
    flags = {"weight_decay": 0.5, "momentum": 0.0, "local_optimizer": optimizer, "capacities": (1.0,)}
    run = adapter_run("flora", merge=True, vmap_batch=vmap_batch, **flags)
    stepped = Stepped(run)
    stepped.round()
    for client in stepped.server.begin():
        task = stepped.server.assign(client, 0.0)
        (update,) = stepped.trainer.train_all([Work(task, *run.data.client(client))])
        received = tensor_of(run, task.params, "0.merged")
        assert np.abs(received).max() > 0.001
        np.testing.assert_array_equal(tensor_of(run, update.params, "0.merged"), received)
        assert (tensor_of(run, update.params, "4.weight") != tensor_of(run, task.params, "4.weight")).all()


@pytest.mark.parametrize("vmap_batch", [1, 2])
def test_flora_compresses_only_the_numbers_that_clients_send(vmap_batch: int) -> None:
    """A client sends the last layer and adapters of rank 4: 28 + 4 * 19 numbers. The merged weights are not sent."""
    sent = 28 + 4 * 19
    flags = {"momentum": 0.0, "capacities": (1.0,), "vmap_batch": vmap_batch}
    for name in ("topk:0.25", "scaled-sign"):
        stepped = Stepped(adapter_run("flora", merge=True, compress=name, **flags))
        for client in stepped.server.begin():
            task = stepped.server.assign(client, 0.0)
            (update,) = stepped.trainer.train_all([Work(task, *stepped.run.data.client(client))])
            changed = int((update.params != task.params).sum())
            assert changed == (sent // 4 if name == "topk:0.25" else sent)


def test_hetlora_with_one_rank_and_equal_norms_is_the_mean() -> None:
    run = two_by_two(merge=False)
    bound, (pair,) = HetLoRA().bind(run.traced.size, 2), find_adapters(run.traced)
    bound.see(run)
    assert run.params is not None
    values = [np.array([1.0, 2, 0, 0, 1, 0, 0, 0]), np.array([0.0, 0, 1, 2, 0, 0, 0, 1])]
    for client, each in enumerate(values):
        theta = run.params.astype(np.float64)
        theta[pair.a], theta[pair.b] = each[:4], each[4:]
        delta = (theta - run.params).astype(np.float32)
        bound.add(ClientDelta(client, DeltaView(slice(None), delta), 7.0 * client, 0.1))
    delta, moved = bound.finish(RoundTotals(np.full(run.traced.size, 2, np.int32), 0.1))
    assert moved.all()
    np.testing.assert_allclose((run.params + delta)[pair.a], np.mean(values, axis=0)[:4], atol=1e-6)
    np.testing.assert_allclose((run.params + delta)[pair.b], np.mean(values, axis=0)[4:], atol=1e-6)


def test_units_that_no_client_trains_keep_their_bits() -> None:
    run = adapter_run("hetlora", capacities=(0.5,))
    stepped = Stepped(run)
    before = stepped.server.params.copy()
    stepped.round()
    covered = np.zeros(run.traced.size, bool)
    covered[run.traced.flat_index(take_prefix(run.traced, 0.5))] = True
    assert (stepped.server.params[~covered] == before[~covered]).all()
    assert (stepped.server.params[covered] != before[covered]).any()


@pytest.mark.parametrize("method", ["hetlora", "flora"])
def test_a_model_without_adapters_is_refused(method: str) -> None:
    with refuses("method", "fedraa.lora", "heterofl", got=method):
        spec(method)
    with refuses("aggregator", "fedraa.lora", got=method):
        spec("heterofl", aggregator=method)


def test_flora_refuses_adapters_without_merge() -> None:
    with pytest.raises(ValueError, match=r"^aggregator: .*FLoRA.*fedraa\.lora\(model, merge=True\)"):
        make_server(adapter_run("flora"), lambda kind, t, /, **fields: None)


def test_hetlora_refuses_masks_over_units() -> None:
    with pytest.raises(ValueError, match=r"^aggregator: .*HetLoRA"):
        adapter_run("hetlora", submodel="bernoulli")


def test_hetlora_refuses_samples_as_weights() -> None:
    with pytest.raises(ValueError, match=r"^weights: .*HetLoRA"):
        adapter_run("hetlora", weights="samples")


@pytest.mark.parametrize("method", ["bernoulli", "shuffled"])
def test_masks_without_a_weight_of_an_adapter_are_accepted(method: str) -> None:
    # The smallest adapter has 12 weights, and the trained last layer has 24.
    adapter_run(method, capacities=(1 / 24,))
