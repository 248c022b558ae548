"""Runs with a model, a dataset or a component that was passed as an object show this everywhere."""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.board.about import read_about
from fedraa.cli.display import print_result
from fedraa.cli.main import COMMANDS, Run
from fedraa.cli.parse import parse_command
from fedraa.report.command import repeat_command, run_command
from schedulers.baselines import Random

SMALL = {"clients": 3, "local_steps": 1, "engine": "local", "quiet": True}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x)
        return out


class Forgetful(Random):
    """A component that keeps its value under another name, so that its description lacks the value."""

    def __init__(self, bias: float = 0.5) -> None:
        super().__init__()
        self._hidden = bias


@dataclass
class Kept(Random):
    bias: float = 0.5


def mine() -> fl.Dataset:
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    return fl.Dataset(name="my:data", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20], classes=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fl.History:
    out = tmp_path_factory.mktemp("objects") / "run"
    return fl.run(method="fedavg", rounds=2, model=Net(), dataset=mine(), out=out, **SMALL)


def test_dataset_from_a_function_equals_the_dataset_object(tmp_path: Path) -> None:
    fields = {"rounds": 2, "model": Net(), **SMALL}
    given = fl.run(method="fedavg", dataset=mine(), out=tmp_path / "object", **fields)
    called = fl.run(method="fedavg", dataset=lambda: mine(), out=tmp_path / "function", **fields)
    assert called.summary["model_sha256"] == given.summary["model_sha256"]
    assert called.config["experiment"]["dataset"] == "my data (given as an object)"
    assert called.config["given"] == given.config["given"]


@pytest.mark.parametrize("make", [lambda: None, lambda: "digits", lambda: 1 / 0, lambda folder: mine(), fl.Dataset])
def test_function_that_returns_no_dataset_is_refused(make: Any) -> None:
    for start in (lambda **fields: fl.compare(["fedavg"], [0], **fields), fl.run):
        with refuses("dataset"):
            start(dataset=make)
    with refuses("dataset"):
        fl.tune(["fedavg"], {"lr": "0.01:1:log"}, trials=1, dataset=make)


def power_of(staleness: int, power: float) -> float:
    return float((1 + staleness) ** -power)


def test_partial_function_is_an_object_that_a_resumed_run_needs_again(tmp_path: Path) -> None:
    weight = partial(power_of, power=0.5)
    history = fl.run(**SMALL, updates=3, staleness=weight, out=tmp_path / "run")
    assert history.config["given"] == ["staleness"]
    with refuses("run", "staleness=...)", got=history.directory):
        fl.resume(history.directory, updates=6)
    assert fl.resume(history.directory, updates=6, staleness=weight).summary["steps"] == 6


class Names(StrEnum):
    FEDAVG = "fedavg"
    TOPK = "topk:0.5"


def test_run_with_members_of_a_text_enum_is_resumed_from_its_directory(tmp_path: Path) -> None:
    history = fl.run(**SMALL, method=Names.FEDAVG, compress=Names.TOPK, rounds=1, out=tmp_path / "run")
    assert history.config["given"] == []
    assert fl.resume(history.directory, rounds=2).summary["steps"] == 2


def test_configuration_names_the_objects_and_not_the_defaults(run: fl.History) -> None:
    experiment = run.config["experiment"]
    assert experiment["model"] == "Net (given as an object)"
    assert experiment["dataset"] == "my data (given as an object)"
    assert run.config["given"] == ["model", "dataset"]
    assert "digits" not in repr(run)


def test_run_command_is_a_python_call_with_placeholders_for_objects(run: fl.History) -> None:
    told = run_command(run.experiment, run.config["given"])
    call, _, comment = told.partition("  # ")
    assert not told.startswith("fedraa run")
    assert "mlp" not in told
    # The evaluated text is from fedraa.
    names = eval(call, {"fedraa": type("Module", (), {"run": staticmethod(dict)})})
    assert {name for name, value in names.items() if value is ...} == {"model", "dataset"}
    assert (names["method"], names["rounds"], names["local_steps"]) == ("fedavg", 2, 1)
    assert "model: Net" in comment
    assert "dataset: my data" in comment


def test_python_call_with_the_same_objects_gives_the_same_model(run: fl.History, tmp_path: Path) -> None:
    call = run_command(run.experiment, run.config["given"]).partition("  # ")[0]
    fields: dict[str, Any] = eval(call, {"fedraa": type("Module", (), {"run": staticmethod(dict)})})
    torch.manual_seed(0)
    net = Net()
    first = fl.run(**fields | {"model": net, "dataset": mine()}, out=tmp_path / "a", quiet=True)
    torch.manual_seed(0)
    again = fl.run(**fields | {"model": Net(), "dataset": mine()}, out=tmp_path / "b", quiet=True)
    assert first.summary["model_sha256"] == again.summary["model_sha256"]


def test_report_and_board_show_the_python_call(
    run: fl.History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run_command(run.experiment, run.config["given"])
    folder = fl.report([run.directory], tmp_path / "page.html", theme="light")
    assert "mlp" not in (tmp_path / "page.html").read_text()
    assert pd.read_csv(folder / "runs.csv")["command"].tolist() == [told]
    settings = pd.read_csv(folder / "configuration.csv").set_index("setting").iloc[:, 0]
    assert settings["model"] == "Net (given as an object)"
    shown = read_about(run.directory)
    assert repeat_command(shown.flags, shown.given) == told
    print_result(run)
    assert settings["dataset"] in capsys.readouterr().out


def test_landscape_of_a_run_with_objects_is_refused(run: fl.History, tmp_path: Path) -> None:
    with refuses("landscape", "model", "dataset"):
        fl.report([run.directory], tmp_path / "page.html", landscape=True)


def test_resume_requires_a_component_whose_description_lacks_a_value(tmp_path: Path) -> None:
    fields = {"hidden": (16,), "updates": 4, "out": tmp_path / "run", **SMALL}
    history = fl.run(scheduler=Forgetful(0.9), **fields)
    assert history.config["given"] == ["scheduler"]
    assert "scheduler=..." in run_command(history.experiment, history.config["given"])
    with refuses("run", "scheduler=...", got=history.directory):
        fl.resume(history.directory, trust=True, updates=6)
    assert fl.resume(history.directory, scheduler=Forgetful(0.9), updates=6).summary["steps"] == 6


def test_component_with_a_full_description_is_shown_as_a_flag(tmp_path: Path) -> None:
    history = fl.run(scheduler=Kept(0.9), hidden=(16,), updates=4, out=tmp_path / "run", **SMALL)
    assert history.config["given"] == []
    words = shlex.split(run_command(history.experiment))
    parsed = parse_command(COMMANDS, words[1:], None)
    assert isinstance(parsed, Run)
    assert parsed.experiment.scheduler == f"{__name__}:Kept(bias=0.9)"


def test_method_object_is_shown_in_a_python_call(tmp_path: Path) -> None:
    method = fl.method("fedavg").replace(momentum=0.3)
    history = fl.run(method=method, rounds=1, hidden=(4,), out=tmp_path / "run", **SMALL)
    told = run_command(history.experiment, history.config["given"])
    assert told.startswith("fedraa.run(")
    assert "method=..." in told
