"""Runs of models with adapters: only adapters are sent and stored, and a digest identifies the base."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import check_resume
from refusals import refuses
from torch import nn

import fedraa as fl
from benchmarks.system.killing import KillAt, Killed
from fedraa.cli.plan import show_plan
from fedraa.errors import Inconsistent
from fedraa.rundir.checkpoint import load_latest

METHODS = ("fed-raa", "fedrolex", "hetlora", "flora")


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 4))


def adapted(seed: int = 0) -> nn.Module:
    return fl.lora(plain(seed), 8)


def mergeable() -> nn.Module:
    return fl.lora(plain(), 8, merge=True)


def dataset() -> fl.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 12)).astype(np.float32)
    y = (x @ rng.normal(size=(12, 4))).argmax(1)
    return fl.Dataset("made", x[:120], y[:120], x[120:], y[120:], 4)


def fields(method: str) -> dict[str, Any]:
    limit = {"updates": 16} if fl.method(method).asynchronous else {"rounds": 4}
    return {"method": method, "clients": 4, "local_epochs": 1, "engine": "local", "checkpoint_every": 1, **limit}


def model(method: str) -> nn.Module:
    return mergeable() if method == "flora" else adapted()


def arrays(state: Any) -> Iterator[np.ndarray]:
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from arrays(part)


@pytest.mark.parametrize("method", METHODS)
def test_run_with_adapters_resumes_and_changes_only_the_adapters(method: str, tmp_path: Path) -> None:
    objects = {"model": model(method), "dataset": dataset()}
    whole = check_resume(fields(method) | objects, tmp_path, kill_at=10, **objects)
    assert whole.evals["loss"].iloc[-1] != whole.evals["loss"].iloc[0]
    state, start = torch.load(tmp_path / "whole" / "model.pt", weights_only=True), model(method).state_dict()
    base = [name for name in state if "base" in name]
    assert base
    assert all(torch.equal(state[name], start[name]) for name in base)
    changed = "0.merged" if method == "flora" else "0.lora_B.weight"
    assert state[changed].abs().max() > 0


def test_tasks_and_checkpoints_do_not_contain_the_base(tmp_path: Path) -> None:
    """Adapters of layers [40, 12] and [4, 40] have 52 + 44 = 96 numbers per unit; clients have 8, 4, 2 or 1 units."""
    history = fl.run(model=adapted(), dataset=dataset(), out=tmp_path / "run", **fields("heterofl"))
    sent = history.events[history.events["kind"] == "dispatch"]
    assert sent["bytes_down"].tolist()[:4] == [4 * 96 * units for units in (8, 4, 2, 1)]
    resolved = history.config["resolved"]
    assert resolved["parameters"] == 8 * 96
    assert resolved["base"]["parameters"] == 12 * 40 + 40 + 80 + 40 * 4 + 4
    state = load_latest(tmp_path / "run" / "checkpoints", lambda state: None)
    assert state is not None
    assert max(array.size for array in arrays(state)) == 8 * 96


def test_resume_and_replay_refuse_another_base(tmp_path: Path) -> None:
    given: dict[str, Any] = {"dataset": dataset(), **fields("hetlora")}
    with pytest.raises(Killed):
        fl.run(model=adapted(), out=tmp_path / "run", callbacks=[KillAt(6)], **given)
    with refuses("run", "base", got=tmp_path / "run"):
        fl.resume(tmp_path / "run", model=adapted(1), dataset=given["dataset"])
    fl.resume(tmp_path / "run", model=adapted(), dataset=given["dataset"])
    path = tmp_path / "run" / "model.pt"
    state = torch.load(path, weights_only=True)
    # Evaluations estimate it again.
    state["1.running_mean"] += 1
    torch.save(state, path)
    with pytest.raises(Inconsistent, match="SHA256SUMS"):
        fl.replay(tmp_path / "run")
    state["0.base.bias"] += 1
    torch.save(state, path)
    with pytest.raises(Inconsistent, match=r"^model\.pt base: .*[0-9a-f]{64}"):
        fl.replay(tmp_path / "run")


def test_config_of_a_model_without_adapters_has_no_base(tmp_path: Path) -> None:
    history = fl.run(model=plain(), dataset=dataset(), out=tmp_path / "run", **fields("fedavg"))
    assert json.loads((history.directory / "config.json").read_text())["resolved"]["base"] is None


@pytest.mark.parametrize(
    ("method", "name", "back"), [("hetlora", "adapted", "384 B to 3.07 kB"), ("flora", "mergeable", "384 B to 3.07 kB")]
)
def test_plan_shows_frozen_parameters_and_upload_sizes(
    method: str, name: str, back: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = dataset()
    arrays = {key: getattr(data, key) for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "made.npz", **arrays)
    show_plan(fl.Experiment(dataset=str(tmp_path / "made.npz"), model=f"test_lora_runs:{name}", **fields(method)))
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(r"frozen 764 parameters, 3\.06 kB; every worker has them", output)
    assert f"sent back {back} a task" in output


def test_heterofl_with_a_frozen_head_trains_all_rows_of_an_adapter(tmp_path: Path) -> None:
    """HeteroFL with a frozen head: only a hidden layer's adapter is trained. Its rank is the number of classes."""
    model = fl.lora(plain(), 4, targets="0")
    history = fl.run(model=model, dataset=dataset(), out=tmp_path / "run", partition="labels", **fields("heterofl"))
    state = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert state["0.lora_A.weight"].ne(model.state_dict()["0.lora_A.weight"]).any(dim=1).all()
    assert np.isfinite(history.evals["loss"]).all()


@pytest.mark.parametrize(
    "fields_", [{"override": {"local.scale_activations": True}}, {"vmap_batch": 2}, {"submodel": "rolling"}]
)
def test_adapters_work_with_other_options(fields_: dict[str, Any], tmp_path: Path) -> None:
    history = fl.run(
        model=fl.lora(nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)), 4, merge=True),
        dataset=dataset(),
        out=tmp_path / "run",
        **fields("flora") | fields_,
    )
    assert np.isfinite(history.evals["loss"]).all()
    assert "consistent" in fl.replay(tmp_path / "run")
