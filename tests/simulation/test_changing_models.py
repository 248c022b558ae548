"""Runs of models that change their buffers in training: right evaluations, and a model.pt that agrees with them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver, MovingAverageMinMaxObserver

import fedraa as fl
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_worker_spec
from fedraa.messages import Task
from tests.changing_modules import WIDTH, Codebook, MovingNorm, ReplacingNorm, SummingNorm

SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "rounds": 6,
    "local_epochs": 3,
    "clients": 4,
    "lr": 0.1,
    "standardise": False,
    "engine": "local",
    "quiet": True,
}


def data(seed: int = 0) -> fl.Dataset:
    """Return standardised data, so that the results do not depend on the scaling of inputs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, WIDTH)).astype(np.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = x[:, :3].argmax(1)
    return fl.Dataset("made", x[:400], y[:400], x[400:], y[400:], 3)


def model(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*layers, nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3))


def exported(module: nn.Module, history: fl.History, x: Any, y: Any) -> tuple[nn.Module, float]:
    """Load model.pt into the plain module, and evaluate it with PyTorch only."""
    module.load_state_dict(torch.load(history.directory / "model.pt"))
    module.eval()
    with torch.no_grad():
        return module, float((module(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def scaled(factor: float, shift: float) -> nn.Module:
    """Return a layer whose outputs have a mean and a variance far from 0 and 1."""
    layer = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(WIDTH) * factor)
        layer.bias.fill_(shift)
    return layer.requires_grad_(False)


@pytest.mark.parametrize(
    "layer",
    [
        MovingNorm,
        ReplacingNorm,
        SummingNorm,
        lambda: nn.BatchNorm1d(WIDTH, momentum=None, affine=False),
        lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        FakeQuantize,
    ],
)
def test_run_with_changing_buffers_learns_and_saves_the_evaluated_model(
    tmp_path: Path, layer: Callable[[], nn.Module]
) -> None:
    made, dataset = model(layer()), data()
    plain = copy.deepcopy(made)
    history = fl.run(model=made, dataset=dataset, out=tmp_path / "run", **SETTINGS)
    accuracy = float(history.evals["accuracy"].iloc[-1])
    assert accuracy > 0.85
    assert exported(plain, history, dataset.x_test, dataset.y_test)[1] == pytest.approx(accuracy, abs=1e-9)


def test_run_with_a_custom_norm_is_as_good_as_with_batch_norm(tmp_path: Path) -> None:
    losses = []
    for number, norm in enumerate((nn.BatchNorm1d(WIDTH, affine=False), MovingNorm())):
        made = model(scaled(20.0, 50.0), norm)
        history = fl.run(model=made, dataset=data(), out=tmp_path / str(number), **SETTINGS)
        losses.append(float(history.evals["loss"].iloc[-1]))
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    state = torch.load(history.directory / "model.pt")
    x = torch.from_numpy(data().x_train) * 20 + 50
    assert torch.allclose(state["1.mean"], x.mean(0), rtol=1e-3)
    assert torch.allclose(state["1.var"], x.var(0), rtol=1e-2)


def test_run_with_spectral_norm_saves_the_leading_singular_vectors(tmp_path: Path) -> None:
    made = model(nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)))
    history = fl.run(model=copy.deepcopy(made), dataset=data(), out=tmp_path / "run", **SETTINGS)
    state = torch.load(history.directory / "model.pt")
    weight, u, v = state["0.weight_orig"], state["0.weight_u"], state["0.weight_v"]
    assert float(u @ weight @ v) == pytest.approx(float(torch.linalg.svdvals(weight)[0]), rel=1e-5)


def test_run_with_an_observer_saves_the_range_of_the_activations(tmp_path: Path) -> None:
    made = model(scaled(2.0, 1.0), MinMaxObserver())
    history = fl.run(model=made, dataset=data(), out=tmp_path / "run", **SETTINGS)
    state, x = torch.load(history.directory / "model.pt"), data().x_train * 2 + 1
    assert float(state["1.min_val"]) == pytest.approx(float(x.min()), rel=1e-5)
    assert float(state["1.max_val"]) == pytest.approx(float(x.max()), rel=1e-5)


def test_run_with_fake_quantisation_saves_the_scale_of_the_training_data(tmp_path: Path) -> None:
    made = model(FakeQuantize(MinMaxObserver, quant_min=0, quant_max=255))
    history = fl.run(model=made, dataset=data(), out=tmp_path / "run", **SETTINGS)
    state, x = torch.load(history.directory / "model.pt"), data().x_train
    assert float(state["0.scale"]) == pytest.approx(float(x.max() - x.min()) / 255, rel=1e-5)
    # Evaluations on test data do not change the buffers.
    assert int(state["0.observer_enabled"]) == 0


def test_run_with_a_codebook_is_refused_before_the_start(tmp_path: Path) -> None:
    made = model(nn.Linear(WIDTH, WIDTH), Codebook())
    with refuses("model", "'codes' of Codebook"):
        fl.run(model=made, dataset=data(), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_run_of_fragments_with_a_custom_norm_cuts_its_buffers(tmp_path: Path) -> None:
    made = nn.Sequential(nn.Linear(WIDTH, 32), MovingNorm(width=32), nn.ReLU(), nn.Linear(32, 3))
    plain, dataset = copy.deepcopy(made), data()
    settings = SETTINGS | {"method": "fed-raa", "fragments": 2, "rounds": None, "updates": 60}
    history = fl.run(model=made, dataset=dataset, out=tmp_path / "run", **settings)
    assert len(history.config["resolved"]["fragments"]) == 2
    accuracy = float(history.evals["accuracy"].iloc[-1])
    assert accuracy > 0.8
    module, found = exported(plain, history, dataset.x_test, dataset.y_test)
    assert found == pytest.approx(accuracy, abs=1e-9)
    x = module[0](torch.from_numpy(dataset.x_train)).detach()
    assert torch.allclose(module[1].mean, x.mean(0), atol=1e-3)


@pytest.mark.parametrize("options", [{"personalised": 2}, {"polyak_fraction": 0.5}])
def test_evaluation_options_treat_a_custom_norm_like_batch_norm(tmp_path: Path, options: dict[str, Any]) -> None:
    found = []
    for number, norm in enumerate((nn.BatchNorm1d(WIDTH, affine=False), MovingNorm())):
        history = fl.run(
            model=model(scaled(20.0, 50.0), norm), dataset=data(), out=tmp_path / str(number), **SETTINGS | options
        )
        column = "personal_mean" if "personalised" in options else "accuracy"
        found.append(float(history.evals[column].iloc[-1]))
    assert found[1] == pytest.approx(found[0], abs=0.03)


def test_vmap_batch_of_a_model_with_changing_buffers_is_refused(tmp_path: Path) -> None:
    with refuses("vmap_batch", "'0.mean'", got=2):
        fl.run(model=model(MovingNorm()), dataset=data(), out=tmp_path / "run", vmap_batch=2, **SETTINGS)


@pytest.mark.parametrize("layer", [MovingNorm, lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), FakeQuantize])
def test_task_does_not_depend_on_earlier_tasks(layer: Callable[[], nn.Module]) -> None:
    spec = build_run(Experiment(clients=4, engine="local", quiet=True, method="fedavg"), model(layer()), data())
    widths = spec.traced.widths(spec.traced.full())

    def train(trainer: Any, client: int) -> Tensor:
        task = Task(client, client, 0, 0, 0, 0, widths, spec.params, 0.1, 1.0)
        return torch.from_numpy(trainer.train(task, *spec.data.client(client)).params)

    used, fresh = make_worker_spec(spec).trainer("cpu"), make_worker_spec(spec).trainer("cpu")
    train(used, 0)
    assert torch.equal(train(used, 1), train(fresh, 1))


def test_resumed_run_with_a_custom_norm_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    longer = fl.run(model=model(MovingNorm(0.1)), dataset=data(), out=tmp_path / "whole", **SETTINGS)
    fl.run(model=model(MovingNorm(0.1)), dataset=data(), out=tmp_path / "parts", **SETTINGS | {"rounds": 3})
    resumed = fl.resume(tmp_path / "parts", model=model(MovingNorm(0.1)), dataset=data(), rounds=6)
    assert resumed.evals.drop(columns="wall").equals(longer.evals.drop(columns="wall"))
    first, second = (torch.load(history.directory / "model.pt") for history in (longer, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
