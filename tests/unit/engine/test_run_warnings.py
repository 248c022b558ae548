"""A run that works but is probably not intended gives one warning; a good run gives none."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedraa as fl
from fedraa.cli.main import main
from fedraa.client.local_optimizer import SGD
from fedraa.engine.build import build_run
from fedraa.engine.run_warnings import find_no_logits, find_stacked_convolutions
from fedraa.errors import RunWarning
from fedraa.objectives import Classification, Objective
from fedraa.objectives.builtin import MultiLabel, NextToken, Regression, Segmentation
from fedraa.report.runs import load_groups
from fedraa.report.tables import make_run_table, table_metrics
from fedraa.rundir.summary import NO_STEP

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
HUGE = np.where(np.arange(60)[:, None] == 7, [[1, 1, 1e6, 1]], X).astype(np.float32)
TOKENS = RNG.integers(0, 9, (60, 4))
PIXELS = RNG.integers(0, 256, (60, 1, 4, 4)).astype(np.uint8)


def warnings_of(
    x: Any = X, y: Any = Y, *, classes: int = 3, model: nn.Module | None = None, **fields: Any
) -> list[str]:
    """Return the warnings of building a run of these samples."""
    data = fl.Dataset("mine", x, y, x[:12], y[:12], classes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_run(fl.Experiment(engine="local", clients=2, **fields), model, data)
    return [str(each.message) for each in caught if issubclass(each.category, fl.RunWarning)]


class Integers(nn.Module):
    """A model that first converts integers to numbers."""

    def __init__(self, convert: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convert, self.net = convert, net()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(self.convert(x))
        return outputs


def images(*shape: int) -> Any:
    return RNG.normal(size=(60, *shape)).astype(np.float32)


def net(*last: nn.Module, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs), *last)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"x": PIXELS}, []),
        ({"x": PIXELS, "standardise": False}, ["x_train .* 255, .*leave standardise on"]),
        ({"x": PIXELS / 255, "standardise": False}, []),
        ({"x": PIXELS, "transforms": ("normalize(mean=(0.5,), std=(0.25,))",)}, ["x_train reaches 1018, .*scale them"]),
        ({"x": np.repeat(HUGE, 60, axis=0), "y": np.repeat(Y, 60)}, []),
        ({"x": np.concatenate([X] * 60 + [HUGE]), "y": np.tile(Y, 61)}, [r" 60(\.\d+)? .* channel 2\b"]),
        (
            {"y": Y + 1, "classes": 4},
            [r"labels 1\.\.3: class 0 .*subtract 1 "],
        ),
        ({"y": np.array([0, 1, 3])[Y], "classes": 4}, ["label 2, .*without gaps"]),
        ({"y": np.arange(60) % 9 * 2, "classes": 17}, [r"label 1, 3, 5, 7, 9, \.\.\., "]),
        ({"y": Y, "classes": 9}, []),
        ({"y": np.zeros_like(Y)}, ["all training samples have the label 0, .*check the labels"]),
        ({"y": np.full_like(Y, 2), "classes": 3}, ["all training samples have the label 2, "]),
        ({"y": Y + 10, "classes": 13}, [r"labels 10\.\.12: classes 0\.\.9 .*subtract 10 "]),
        ({"x": images(6, 8, 3)}, [r"\[6, 8, 3\].*x\.transpose\(0, 3, 1, 2\)"]),
        ({"x": images(8, 8, 1)}, [r"\[8, 8, 1\]"]),
        # Series of six sensors, small maps of 16 channels, and images with the channels first.
        ({"x": images(6, 8, 1)}, []),
        ({"x": images(16, 4, 4)}, []),
        ({"x": images(3, 8, 8)}, []),
        ({"x": TOKENS, "model": Integers(Tensor.float)}, [r"no embedding.*astype\('float32'\)"]),
        # Each of these models uses the integers as indices.
        ({"x": TOKENS, "model": Integers(lambda x: functional.one_hot(x, 9).sum(2).float())}, []),
        ({"x": TOKENS, "model": Integers(lambda x: functional.embedding(x, torch.ones(9, 1)).squeeze(2))}, []),
        ({"x": TOKENS, "model": Integers(lambda x: torch.ones(9)[x])}, []),
        ({"compute": "1:0.5,3e9:0.5"}, []),
        ({"compute": "1e9:0.5,3e9:0.5"}, ["^compute: .*--units physical"]),
        ({"compute": "1e9:0.5,3e9:0.5", "units": "physical"}, []),
        ({"compute": "30:0.5,1e9:0.5", "units": "physical"}, ["^compute: .*30 FLOP/s.*3e10"]),
        ({"model": net(nn.Softmax(1))}, ["^model: Sequential .*probabilities, .*softmax"]),
        ({"model": net(nn.Sigmoid())}, ["^model: Sequential .*probabilities, .*sigmoid"]),
        ({"model": net(nn.LogSoftmax(1))}, []),
        ({"model": net(nn.ReLU())}, ["^model: Sequential .*like a ReLU"]),
        ({"model": net(nn.ELU())}, []),
        ({"model": net(nn.Tanh())}, []),
        ({"model": net(nn.LayerNorm(3))}, []),
    ],
)
def test_doubtful_run_gives_one_warning_and_a_good_run_none(given: dict[str, Any], said: list[str]) -> None:
    found = warnings_of(**given)
    assert len(found) == len(said), found
    for got, pattern in zip(found, said, strict=True):
        assert re.search(pattern, got), got
        assert "\n" not in got


class Transposed(nn.Module):
    """A softmax over another dimension."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension, self.embed = dimension, nn.Embedding(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x.clamp(0, 8)).softmax(self.dimension)


@pytest.mark.parametrize(
    ("model", "example", "objective", "warns"),
    [
        (net(nn.Sigmoid()), torch.randn(8, 4), MultiLabel(), True),
        (net(), torch.randn(8, 4), MultiLabel(), False),
        (net(nn.Sigmoid()), torch.randn(8, 4), Regression(), False),
        (Transposed(-1), torch.randint(0, 9, (8, 6)), NextToken(), True),
        (Transposed(1), torch.randint(0, 9, (8, 6)), NextToken(), False),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(1)), torch.randn(8, 3, 5, 5), Segmentation(), True),
        (nn.Conv2d(3, 4, 1), torch.randn(8, 3, 5, 5), Segmentation(), False),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), torch.randn(8, 3, 5, 5), Segmentation(), True),
        (net(nn.ReLU()), torch.randn(8, 4), Regression(), False),
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Softmax(1)), torch.randn(8, 4), Classification(), True),
    ],
)
def test_outputs_that_are_no_logits_are_detected(
    model: nn.Module, example: Tensor, objective: Objective, warns: bool
) -> None:
    model(example)
    model.train()
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert (find_no_logits(model, example, objective) is not None) is warns
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_run_without_a_step_is_marked_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--time", "0.01", "--engine", "local", "--method", "fedavg", "--hidden", "8", "--clients", "2"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"fedraa: warning: {NO_STEP}: ")
    assert shown.err.count("\n") == 1
    assert f"0 (0 tasks): {NO_STEP}" in shown.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["note"] == NO_STEP
    assert "consistent" in fl.replay(tmp_path / "run")
    groups = load_groups([tmp_path / "run"])
    table = make_run_table(groups, table_metrics(groups, {}))
    assert table.frame["method"].tolist() == [f"fedavg ({NO_STEP})"]
    assert table.frame["ended_by"].tolist() == [f"time: {NO_STEP}"]


def test_run_whose_updates_complete_no_step_is_reported_with_their_number(tmp_path: Path) -> None:
    """Each of the 4 clients has time for one task, and the buffer waits for 5 updates."""
    fields: dict[str, Any] = {"method": "fedbuff", "buffer_size": 5, "clients": 4, "hidden": (8,), "engine": "local"}
    with pytest.warns(RunWarning, match=f"^{NO_STEP}: .* after 4 updates, .* step .* more time"):
        fl.run(**fields, time=1.5, compute="1:1", partition="iid", out=tmp_path / "run", quiet=True)


def test_target_met_by_the_untrained_model_advises_no_more_time(tmp_path: Path) -> None:
    with pytest.warns(RunWarning, match=f"^{NO_STEP}: .* target .*time 0, .* target") as caught:
        fl.run(target="loss:100", engine="local", hidden=(8,), clients=2, out=tmp_path / "run", quiet=True)
    assert "more time" not in str(caught[0].message)


def test_a_comparison_marks_the_methods_that_finished_no_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--time", "0.1", "--engine", "local", "--hidden", "8", "--clients", "4", "--quiet"]
    assert main(["compare", "fed-raa", "fedavg", *words[:-1], "--out", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert f"fedavg ({NO_STEP})" in shown
    assert "fed-raa (no" not in shown
    notes = pd.read_csv(tmp_path / "runs" / "compare.csv").set_index("method")["note"]
    assert notes["fedavg"] == NO_STEP
    assert pd.isna(notes["fed-raa"])


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"method": "fed-raa", "updates": 2}, ["fragments: .* 4 .*local.scale_activations"]),
        ({"method": "fed-raa", "updates": 2, "override": {"local.scale_activations": True}}, []),
        ({"method": "fed-raa", "updates": 2, "fragments": 1}, []),
        ({"method": "fed-quilt", "updates": 2, "override": {"local.logit_calibration": 0.0}}, []),
        ({"method": "fedavg", "rounds": 1}, []),
        ({"method": "heterofl", "rounds": 1, "objective": "classification", "y": Y, "classes": 3}, []),
    ],
)
def test_regression_with_several_fragments_gives_a_warning(fields: dict[str, Any], names: list[str]) -> None:
    values = {"y": X[:, 0] - X[:, 1], "classes": 0, "objective": "regression", "hidden": (8,), **fields}
    sentences = warnings_of(**values)
    assert len(sentences) == len(names)
    for sentence, name in zip(sentences, names, strict=True):
        assert re.search(name, sentence)


@pytest.mark.parametrize(
    ("model", "stack", "device", "warns"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), 2, "cuda", True),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), 1, "cuda", False),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), 2, "cpu", False),
        (nn.Sequential(nn.ConvTranspose1d(1, 2, 3), nn.Flatten()), 2, "cuda", True),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), 2, "cuda", False),
    ],
)
def test_stacked_convolutions_on_a_gpu_give_a_warning(model: nn.Module, stack: int, device: str, warns: bool) -> None:
    assert (find_stacked_convolutions(model, stack, device) is not None) is warns


def test_sum_of_two_fragments_is_twice_the_target(tmp_path: Path) -> None:
    """The warning is right: the factor of the full model's predictions is about the number of fragments."""
    x = RNG.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] - 2 * x[:, 1]).astype(np.float32)
    data = fl.Dataset("line", x[:300], y[:300], x[300:], y[300:])
    fields: dict[str, Any] = {"objective": "regression", "clients": 2, "updates": 120, "ratios": (0.5, 0.5), "lr": 0.02}
    with pytest.warns(RunWarning, match="fragments: "):
        history = fl.run(method="fed-raa", dataset=data, engine="local", out=tmp_path / "run", quiet=True, **fields)
    with torch.no_grad():
        predicted = history.load_model()(torch.from_numpy(x[300:])).numpy().ravel()
    factor = float(predicted @ y[300:] / (y[300:] @ y[300:]))
    assert factor == pytest.approx(2, abs=0.25)


def test_run_whose_tasks_all_miss_the_deadline_gives_a_warning(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 2, "clients": 3, "hidden": (8,), "engine": "local"}
    with pytest.warns(RunWarning, match="^no update arrived in time: 6 tasks .* deadline$"):
        history = fl.run(**fields, deadline=1e-6, quiet=True, out=tmp_path / "run")
    assert history.summary["lost"] == 6


def test_a_run_without_clients_in_any_round_warns(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 2, "clients": 3, "hidden": (8,), "engine": "local"}
    with pytest.warns(RunWarning, match="^no client took part in any round"):
        fl.run(**fields, participation="poisson:1e-9", quiet=True, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "memory", "small"),
    [
        ("fedavg", (0.99, 1, 0.5), "clients 0, 2 lack "),
        ("fedavg", (1, 0.2, 1), "client 1 lacks "),
        ("fedavg", (1, 1, 2), None),
        # Every client trains half of the units. The training state of this half is slightly more than half.
        ("fedrolex", (0.6, 0.4, 0.6), "client 1 lacks "),
        ("fed-raa", (0.5, 0.5, 0.5), None),
    ],
)
def test_devices_without_memory_for_their_submodel_give_one_warning_in_plan_and_run(
    method: str, memory: tuple[float, ...], small: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("compute,memory\n" + "".join(f"1,{share}\n" for share in memory))
    options = ["--method", method, "--clients", "3", "--compute", str(fleet), "--local-steps", "1"]
    if method == "fedrolex":
        options += ["--capacities", "0.5"]
    sentences = []
    for command in (["plan"], ["run", "--rounds", "1", "--engine", "local", "--out", str(tmp_path / "run")]):
        if method == "fed-raa":
            command = [word.replace("--rounds", "--updates") for word in command]
        assert main([*command, *options]) == 0
        lines = capsys.readouterr().err.splitlines()
        sentences.append([line for line in lines if line.startswith("fedraa: warning: compute: ")])
    assert sentences[0] == sentences[1]
    if small is None:
        assert sentences[0] == []
    else:
        [sentence] = sentences[0]
        assert small in sentence


class LongerSteps(SGD):
    """SGD with steps that are longer by the momentum."""

    def descend(self, weights: Tensor, gradient: Tensor, *args: Any, lr: float, momentum: float, **values: Any) -> None:
        weights.sub_(gradient, alpha=lr * (1 + momentum))


@pytest.mark.parametrize(
    ("option", "fields", "has_effect"),
    [
        ("momentum", {"local_steps": 1}, False),
        ("prox_mu", {"local_steps": 1}, False),
        ("prox_mu", {"local_epochs": 1, "batch_size": 30}, False),
        ("momentum", {"local_steps": 2}, True),
        ("prox_mu", {"local_steps": 2}, True),
        ("momentum", {"local_steps": 1, "local_optimizer_state": "keep"}, True),
        ("momentum", {"local_steps": 1, "local_optimizer": "sgd(nesterov=True)"}, True),
        ("momentum", {"local_steps": 1, "local_optimizer": LongerSteps()}, True),
        ("prox_mu", {"local_steps": 1, "override": {"local.sam_rho": 0.1}}, False),
    ],
    ids=str,
)
def test_option_that_single_steps_cannot_use_gives_a_warning(
    option: str, fields: dict[str, Any], has_effect: bool
) -> None:
    data = fl.Dataset("mine", X, Y, X[:12], Y[:12], 3)
    results = []
    for value in (0.3, 0.6):
        settings: dict[str, Any] = {"method": "fedavg", "clients": 2, "rounds": 2, "lr": 0.5, **fields, option: value}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = fl.run(dataset=data, engine="local", quiet=True, **settings)
        assert [str(each.message).split(":")[0] for each in caught] == ([] if has_effect else [option])
        results.append(torch.cat([part.flatten() for part in torch.load(history.directory / "model.pt").values()]))
    assert (float((results[0] - results[1]).abs().max()) > 1e-5) == has_effect


def test_integer_features_beside_a_mask_give_a_warning() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            outputs: Tensor = self.net(x * mask.float())
            return outputs

    x = {"x": TOKENS, "mask": TOKENS > 3}
    data = fl.Dataset("mine", x, Y, x, Y, 3)
    with pytest.warns(RunWarning, match="no embedding"):
        build_run(fl.Experiment(engine="local", clients=2, method="fedavg"), Masked(), data)


def test_slow_link_in_physical_units_gives_a_warning(tmp_path: Path) -> None:
    devices, links = tmp_path / "devices.csv", tmp_path / "links.csv"
    devices.write_text("compute,downlink,uplink\n1e9,8,4\n1e9,8,4\n")
    (sentence,) = warnings_of(compute=str(devices), units="physical")
    assert re.search("^compute: .* 4 bytes/s", sentence)
    links.write_text("client,end,downlink,uplink\n0,1,8,4\n")
    (sentence,) = warnings_of(compute="1e9:1", links=links, units="physical")
    assert re.search("^links: .* 4 bytes/s", sentence)


@pytest.mark.parametrize(("size", "warned"), [(2000, 0), (2001, 1), (10**12, 1)])
def test_buffer_of_more_than_a_thousand_updates_of_each_client_gives_a_warning(size: int, warned: int) -> None:
    found = warnings_of(method="fedbuff", buffer_size=size)
    assert [text.partition(":")[0] for text in found] == ["buffer_size"] * warned
