"""Samples that clients read: statistics of batch norms, personalised training, names of run directories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.config.experiment import Experiment
from fedraa.engine import run_spec
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_worker_spec
from fedraa.evaluation.personal import FineTuning

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((90, 1, 4, 4)).astype(np.float32) + np.arange(90)[:, None, None, None] / 9, np.arange(90) % 3
X = X.astype(np.float32)
OWNERS = [f"writer/{row % 4}" for row in range(90)]
SMALL: dict[str, Any] = {"engine": "local", "quiet": True, "method": "fedavg", "rounds": 1, "local_steps": 1}


class Read(fl.Rows):
    def __len__(self) -> int:
        return len(Y)

    def read(self, rows: Any) -> Any:
        return X[rows], Y[rows]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def data(train: Any, **more: Any) -> fl.FederatedDataset:
    return fl.FederatedDataset("a b/c", train, (X[:12], Y[:12]), clients=OWNERS, **more)


@pytest.mark.parametrize("partition", ["natural", "noise"])
@pytest.mark.parametrize("statistics", ["all", "sample"])
def test_batch_norm_statistics_are_equal_for_read_and_in_memory_samples(
    statistics: str, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_spec, "STATISTICS_SAMPLES", 50)
    monkeypatch.setattr("fedraa.evaluation.evaluator.BATCH", 16)
    found = []
    for train in ((X, Y), Read()):
        spec = build_run(
            Experiment(**SMALL, clients=4, partition=partition, statistics=statistics), model=net(), dataset=data(train)
        )
        given = spec.evaluation_data
        assert len(given.x_train) == (
            90 if statistics == "all" and given.source is None else 0 if given.streamed else 50
        )
        module = make_worker_spec(spec).evaluator(given, "cpu").prepare(spec.params)
        found.append({name: value.tolist() for name, value in module.state_dict().items() if "running" in name})
    np.testing.assert_allclose(found[0]["1.running_mean"], found[1]["1.running_mean"], rtol=1e-5)
    assert found[0]["1.running_mean"] != [0] * 4
    # Batches of a stream have the samples of few clients.
    assert statistics == "all" or found[0] == found[1]


def test_statistics_sample_is_limited_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_spec, "STATISTICS_BYTES", 64 * 30)
    monkeypatch.setattr(run_spec, "FEW", 20)
    assert len(build_run(Experiment(**SMALL), model=net(), dataset=data(Read())).evaluation_data.x_train) == 30


class Brighter(fl.Transform):
    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return x + float(rng.uniform(0, 5))


def personalised_model(steps: int | str) -> Any:
    experiment = Experiment(**SMALL | {"local_steps": steps}, clients=4)
    spec = build_run(experiment, model=net(), dataset=data((X, Y)))
    fine_tuning = FineTuning(spec.traced, spec.method.local, seed=0)
    model = fine_tuning.model(spec.params, {}, 0, *spec.data.client(0))
    assert model is not None
    return model


@pytest.mark.parametrize(("steps", "as_many"), [("auto", 1), ("auto:3", 3)])
def test_personalised_training_with_auto_steps_ignores_transfer_times(steps: str, as_many: int) -> None:
    """Personalised training makes one pass, which here is one minibatch."""
    found = personalised_model(steps)
    np.testing.assert_allclose(found, personalised_model(as_many), atol=1e-5)
    assert np.abs(found - personalised_model(4 - as_many)).max() > 1e-3


def test_personalised_training_applies_transforms(tmp_path: Path) -> None:
    found = []
    for number, transforms in enumerate(((), (Brighter(),), (Brighter(),))):
        experiment = Experiment(
            **SMALL, transforms=transforms, personalised=2, standardise=False, out=tmp_path / str(number)
        )
        evals = fl.run(experiment, dataset=data((X, Y))).evals
        # No task has trained yet.
        found.append(evals["personal_mean"].iloc[0])
    assert found[1] == found[2] != found[0]


def test_personalised_evaluation_without_test_samples_is_refused() -> None:
    with refuses("personalised", "test samples"):
        build_run(Experiment(**SMALL, personalised=2), dataset=data((X, Y), test_clients=["nobody"] * 12))


def test_a_run_directory_is_named_after_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fl.run(Experiment(**SMALL), dataset=data((X, Y))).directory == Path("runs/fedavg-a-b-c-0")
    rows = "\n".join(f"{a:.3f},{int(a > 0)}" for a in X[:, 0, 0, 0].tolist())
    Path("sales of may.csv").write_text(f"price,bought\n{rows}")
    table = "csv('sales of may.csv', target='bought')"
    assert fl.run(Experiment(**SMALL, dataset=table)).directory == Path("runs/fedavg-sales-of-may-0")
