"""Shards whose last minibatch would have one sample, with models that cannot be trained on one sample."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedraa as fl
from fedraa.cli.main import main
from fedraa.client import LocalTraining
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model, make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task
from tests.changing_modules import WIDTH, Squeezed

SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "rounds": 2,
    "batch_size": 32,
    "standardise": False,
    "engine": "local",
    "quiet": True,
}


def shards(*sizes: int, test: int = 50) -> fl.FederatedDataset:
    rng = np.random.default_rng(0)
    count = sum(sizes)
    x = rng.normal(size=(count + test, WIDTH)).astype(np.float32)
    y = x[:, :3].argmax(1)
    clients = np.repeat(np.arange(len(sizes)), sizes).tolist()
    return fl.FederatedDataset("made", (x[:count], y[:count]), (x[count:], y[count:]), clients=clients)


def norm_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def plain_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("least", "shard", "sizes"),
    [
        (1, 65, [32, 32, 1]),
        (2, 65, [32, 33]),
        (2, 33, [33]),
        (2, 32, [32]),
        (2, 34, [32, 2]),
        (2, 5, [5]),
        (2, 64, [32, 32]),
        (2, 1, [1]),
    ],
)
def test_minibatches_of_a_pass_join_a_single_last_sample(least: int, shard: int, sizes: list[int]) -> None:
    solver = LocalTraining(batch_size=32, min_batch=least, epochs=3)
    spans = solver.spans(shard)
    assert [span.stop - span.start for span in spans] == sizes
    assert np.concatenate([np.arange(shard)[span] for span in spans]).tolist() == list(range(shard))
    assert solver.count_minibatches(shard) == len(sizes)
    assert solver.count_minibatches(np.array([shard, shard])).tolist() == [len(sizes)] * 2
    assert (solver.count_steps(shard), solver.count_samples(shard)) == (3 * len(sizes), 3 * shard)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_samples_of_fixed_steps_sum_the_sizes_of_the_minibatches(steps: int) -> None:
    solver = LocalTraining(batch_size=32, min_batch=2, steps=steps)
    sizes = [span.stop - span.start for span in solver.spans(65)]
    assert solver.count_samples(65) == sum((sizes * steps)[:steps])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (norm_model, {}),
        (Squeezed, {}),
        (norm_model, {"local_steps": 3}),
        (norm_model, {"method": "fed-raa", "ratios": (0.4, 0.6), "rounds": None, "updates": 16}),
    ],
)
def test_run_trains_every_client(tmp_path: Path, make: Any, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        history = fl.run(model=make(), dataset=shards(64, 33, 96, 65), out=tmp_path / "run", **SETTINGS | options)
    commits = history.events.query("kind == 'commit'")
    assert set(commits.client.astype(int)) == {0, 1, 2, 3}
    assert (history.summary["dropped"], history.summary["quarantined"]) == (0, [])
    assert np.isfinite(history.evals["loss"]).all()
    assert main(["replay", str(tmp_path / "run")]) == 0


def test_task_takes_as_many_steps_as_the_cost_model_counts() -> None:
    spec = build_run(Experiment(**{**SETTINGS, "local_epochs": 2}), norm_model(), shards(64, 33, 96, 65))
    widths = spec.traced.widths(spec.traced.full())
    for client, steps in ((0, 4), (1, 2), (2, 6), (3, 4)):
        task = Task(0, client, 0, 0, 0, 0, widths, spec.params, 0.1, 1.0)
        update = make_worker_spec(spec).trainer("cpu").train(task, *spec.data.client(client))
        assert update.steps == steps == make_cost_model(spec).all_steps([widths])[client, 0]


def test_update_of_a_joined_batch_equals_pytorch() -> None:
    spec = build_run(Experiment(**SETTINGS, momentum=0.0, lr=0.1, local_epochs=1), norm_model(), shards(33, 40))
    update = _train(spec, 0)
    x, y = (torch.from_numpy(np.asarray(part)) for part in spec.data.client(0))
    model = norm_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # The order of samples in the only batch has no effect.
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    np.testing.assert_allclose(update, expected, atol=1e-6)


def test_model_without_batch_norm_trains_on_a_single_sample() -> None:
    spec = build_run(Experiment(**SETTINGS), plain_model(), shards(33, 65))
    assert spec.method.local.min_batch == 1
    assert [span.stop - span.start for span in spec.method.local.spans(33)] == [32, 1]


def test_shards_in_device_memory_train_on_joined_batches() -> None:
    spec = build_run(Experiment(**SETTINGS), Squeezed(), shards(33, 65))
    there = make_worker_spec(spec).trainer("cpu")
    there._resident_bytes = 2**30
    np.testing.assert_array_equal(_train(spec, 1), _train(spec, 1, there))


def test_full_gradient_of_a_shard_with_a_single_last_sample_is_its_mean() -> None:
    spec = build_run(Experiment(**SETTINGS | {"method": "mimelite"}), Squeezed(), shards(1025, 40))
    widths = spec.traced.widths(spec.traced.full())
    momentum = np.zeros_like(spec.params)
    task = Task(0, 0, 0, 0, 0, 0, widths, spec.params, 0.1, 1.0, extras={"momentum": momentum})
    found = make_worker_spec(spec).trainer("cpu").train(task, *spec.data.client(0)).extras["gradient"]
    x, y = (torch.from_numpy(np.asarray(part)) for part in spec.data.client(0))
    model = nn.Linear(WIDTH, 3)
    flat = torch.from_numpy(spec.params)
    model.weight.data, model.bias.data = flat[: 3 * WIDTH].view(3, WIDTH).clone(), flat[3 * WIDTH :].clone()
    nn.functional.cross_entropy(model(x), y).backward()
    expected = torch.cat([model.weight.grad.reshape(-1), model.bias.grad])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("test", [1, 1025])
def test_evaluation_includes_a_single_last_sample(tmp_path: Path, test: int) -> None:
    dataset = shards(40, 40, test=test)
    history = fl.run(model=Squeezed(), dataset=dataset, out=tmp_path / "run", **SETTINGS)
    plain = Squeezed()
    plain.load_state_dict(torch.load(history.directory / "model.pt"))
    x, y = torch.from_numpy(dataset.test[0]), torch.from_numpy(dataset.test[1])
    with torch.no_grad():
        loss = nn.functional.cross_entropy(plain.layer(x), y)
    assert float(history.evals["loss"].iloc[-1]) == pytest.approx(float(loss), rel=1e-5)


def test_clients_with_one_sample_are_warned_about_and_quarantined(tmp_path: Path, capsys: Any) -> None:
    dataset = shards(40, 1, 40, 1)
    with pytest.warns(UserWarning, match="^clients: clients 1, 3 ") as caught:
        history = fl.run(model=norm_model(), dataset=dataset, out=tmp_path / "run", **SETTINGS | {"rounds": 3})
    sentences = [str(warning.message) for warning in caught]
    assert any(sentence.startswith("client 3 ") and "quarantined" in sentence for sentence in sentences)
    assert history.state == "ended by steps"
    found = history.summary["quarantined"]
    assert sorted(entry["client"] for entry in found) == [1, 3]  # type: ignore[attr-defined]
    assert all("1 sample" in entry["reason"] for entry in found)  # type: ignore[attr-defined]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["quarantined"] == found
    assert main(["replay", str(tmp_path / "run")]) == 0


def test_personalised_client_with_one_sample_has_finite_metrics(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(140, WIDTH)).astype(np.float32)
    y = x[:, :3].argmax(1)
    train, test = np.repeat([0, 1], [99, 1]).tolist(), np.repeat([0, 1], [20, 20]).tolist()
    dataset = fl.FederatedDataset("made", (x[:100], y[:100]), (x[100:], y[100:]), clients=train, test_clients=test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = fl.run(model=norm_model(), dataset=dataset, out=tmp_path / "run", personalised=2, **SETTINGS)
    assert np.isfinite(history.evals["personal_worst"]).all()


@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [
        ((40, 40), {"batch_size": 1}, "^batch_size: got 1"),
        ((1,) * 12, {}, "^clients: .*one training sample"),
        ((40, 1), {"on_bad_client": "stop"}, "^on_bad_client: .*client 1"),
    ],
)
def test_run_that_cannot_train_is_refused_before_the_start(
    tmp_path: Path, sizes: tuple[int, ...], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        fl.run(model=norm_model(), dataset=shards(*sizes), out=tmp_path / "run", **SETTINGS | options)
    assert not (tmp_path / "run").exists()


def _train(spec: RunSpec, client: int, trainer: Any = None) -> Any:
    widths = spec.traced.widths(spec.traced.full())
    task = Task(0, client, 0, 0, 0, 0, widths, spec.params, spec.method.local.lr, 1.0)
    return (trainer or make_worker_spec(spec).trainer("cpu")).train(task, *spec.data.client(client)).params
