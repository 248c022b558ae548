"""Objects in `compare` and `tune`: data sets, modules, functions that return modules, and methods."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.composition.method import Method
from fedraa.server.staleness import Polynomial

random = np.random.default_rng(0)
X = random.normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
SMALL: dict[str, Any] = {"clients": 2, "local_steps": 2, "engine": "local"}


class Branching(nn.Module):
    """A module that cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        result: torch.Tensor = self.b(y.relu() if y.sum() > 0 else y)
        return result


def linear() -> nn.Module:
    return nn.Linear(5, 2)


def mine() -> fl.Dataset:
    return fl.Dataset("mine", X[:40], Y[:40], X[40:], Y[40:], 2)


def test_compare_begins_every_run_with_the_same_weights_of_a_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Branching()
    before = [p.clone() for p in module.parameters()]
    frame = fl.compare(["fedavg", "fedprox"], (1,), model=module, dataset=mine(), rounds=2, out=tmp_path, **SMALL)
    assert all(torch.equal(p, was) for p, was in zip(module.parameters(), before, strict=True))
    for method, seed in zip(frame["method"], frame["seed"], strict=True):
        name = f"{method}-{seed}"
        alone = fl.run(
            method=method, seed=seed, model=module, dataset=mine(), rounds=2, out=tmp_path / f"alone-{name}", **SMALL
        )
        assert alone.summary["model_sha256"] == fl.History(tmp_path / name).summary["model_sha256"]


def test_runs_of_a_comparison_resume_with_the_objects(tmp_path: Path) -> None:
    module = Branching()
    fl.compare("fedavg", model=module, dataset=mine(), rounds=2, out=tmp_path / "a", **SMALL)
    fl.compare("fedavg", model=module, dataset=mine(), rounds=4, out=tmp_path / "b", **SMALL)
    longer = fl.resume(tmp_path / "a" / "fedavg-0", model=module, dataset=mine(), rounds=4)
    assert longer.summary["model_sha256"] == fl.History(tmp_path / "b" / "fedavg-0").summary["model_sha256"]


def test_compare_takes_methods_components_and_functions_as_objects(tmp_path: Path) -> None:
    slow = dataclasses.replace(fl.method("fedasync").replace(mixing=0.1), name="slow")
    frame = fl.compare(
        [slow, "fedasync"], model=linear, dataset=mine(), staleness=Polynomial(), updates=4, out=tmp_path, **SMALL
    )
    assert frame["method"].tolist() == ["slow", "fedasync"]
    mixes = [
        fl.History(tmp_path / f"{name}-0").events.query("kind == 'commit'")["weight"].max() for name in frame["method"]
    ]
    assert mixes == pytest.approx([0.1, 0.6])


@pytest.mark.parametrize(
    ("methods", "seeds", "pattern"),
    [
        ("fedmagic", (0,), "^method: .*'fedmagic'"),
        ("fedavg", 3, r"^seeds: .*3; .*range\(3\)"),
        ("fedavg", (1, 1.0), r"^seeds: got \(1, 1.0\); expected .*different"),
        ("fedavg", range(10**12), r"^seeds: got range\(0, 10{12}\); expected at most 1000000 "),
        ([], (0,), "^methods: "),
        (None, (0,), "^methods: .*None"),
        ([fl.method("fedavg"), "fedavg"], (0,), r"^methods: .*replace\(method, name="),
        (
            [dataclasses.replace(fl.method("fedavg"), name=name) for name in ("my method", "my/method")],
            (0,),
            "^methods: 'my method' and 'my/method' .*my-method",
        ),
        ([mine()], (0,), r"^method: .*a Dataset 'mine'"),
        (["fed-raa"], (0,), "^model: .*Branching.*fedavg"),
    ],
)
def test_compare_of_wrong_objects_is_refused(methods: Any, seeds: Any, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=pattern):
        fl.compare(methods, seeds, model=Branching(), dataset=mine(), time=1.0, out=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()


def test_tune_with_objects_continues_only_with_the_same_objects(tmp_path: Path) -> None:
    module = Branching()
    arguments: dict[str, Any] = {"model": module, "dataset": mine(), "rounds": 2, "out": tmp_path / "tune"} | SMALL
    slow: Method = dataclasses.replace(fl.method("fedavg").replace(momentum=0.1), name="slow")
    tuned = fl.tune([slow, "fedprox"], {"lr": [0.01, 0.1]}, trials=2, **arguments)
    again = fl.tune([slow, "fedprox"], {"lr": [0.01, 0.1]}, trials=2, **arguments)
    assert set(tuned.table["method"]) == {"slow", "fedprox"}
    pd.testing.assert_frame_equal(tuned.table, again.table)
    with torch.no_grad():
        module.b.bias += 1
    with refuses("out", str(tmp_path / "tune")):
        fl.tune([slow, "fedprox"], {"lr": [0.01, 0.1]}, trials=2, **arguments)


@pytest.mark.slow
def test_trials_in_processes_equal_trials_in_this_process(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"model": linear(), "dataset": mine(), "rounds": 2} | SMALL
    here = fl.tune("fedavg", {"lr": [0.01, 0.1]}, trials=2, out=tmp_path / "one", **arguments)
    elsewhere = fl.tune("fedavg", {"lr": [0.01, 0.1]}, trials=2, jobs=2, out=tmp_path / "two", **arguments)
    assert sorted(here.table["accuracy"]) == sorted(elsewhere.table["accuracy"])


def test_tune_refuses_objects_that_cannot_be_pickled(tmp_path: Path) -> None:
    with refuses("jobs", "experiment", "jobs=1"):
        fl.tune(
            "fedavg",
            {"lr": [0.01, 0.1]},
            2,
            model=lambda: linear(),
            dataset=mine(),
            jobs=2,
            rounds=2,
            out=tmp_path / "t",
            **SMALL,
        )
    assert not (tmp_path / "t").exists()


def test_fields_of_several_values_accept_one_value() -> None:
    # Experiment accepts values of other types, and converts them.
    assert fl.Experiment(hidden=64).hidden == fl.Experiment(hidden=np.array([64])).hidden == (64,)  # type: ignore[arg-type]
    assert fl.Experiment(capacities=0.5).capacities == (0.5,)  # type: ignore[arg-type]
    assert fl.Experiment(capacities="auto").capacities == "auto"


@pytest.mark.parametrize("field", ["dataset", "lr", "hidden", "availability", "scheduler", "partition", "out"])
@pytest.mark.parametrize("value", [X, torch.from_numpy(X), pd.DataFrame(X), nn.Linear(50, 50), mine(), {"a": X}])
def test_error_never_shows_the_values_of_an_object(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: ") as raised:
        fl.run(fl.Experiment(**{field: value}), engine="local")
    assert len(str(raised.value)) < 300
    assert "0." not in str(raised.value)
