"""Runs of Fed-Quilt with its defaults: resumes, replays on both clocks, and its components in other methods."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import check_resume, lines
from refusals import refuses

from fedraa import replay, run
from fedraa.client.trainer import Trainer
from fedraa.errors import Inconsistent
from fedraa.messages import Task, Update
from fedraa.rundir.checkpoint import newest_first, read_state
from fedraa.rundir.file_names import CHECKPOINTS
from fedraa.rundir.history import History

LINKS = "compute,downlink,uplink,latency\n1,1,0.5,0.05\n3,4,2,0\n1,9,9,0\n2,0.5,1,0.1\n"


def small(tmp_path: Path, **flags: Any) -> dict[str, Any]:
    (tmp_path / "devices.csv").write_text(LINKS)
    common: dict[str, Any] = {"method": "fed-quilt", "engine": "local", "hidden": (8,), "clients": 4, "quiet": True}
    common |= {"compute": str(tmp_path / "devices.csv"), "partition": "dirichlet", "updates": 25, "batch_size": 128}
    return common | {"local_steps": "auto:3", "checkpoint_every": 3} | flags


@pytest.mark.parametrize(
    "flags",
    [
        {"override": {"update.participation_correction": 0.5}},
        {"method": "fedasync", "override": {"update.participation_correction": 0.5}, "polyak_fraction": 0.2},
        pytest.param({"concurrency": 2, "staleness": "delay-adaptive"}, marks=pytest.mark.slow),
        {"async_rule": "ringleader", "updates": 8},
        {"method": "fedbuff", "override": {"update.participation_correction": 0.5}, "buffer_size": 3},
        {"method": "fedavg", "polyak_fraction": 0.2, "updates": None, "rounds": 4, "vmap_batch": 2},
    ],
)
def test_killed_and_resumed_run_is_the_same_run(flags: dict[str, Any], tmp_path: Path) -> None:
    check_resume(small(tmp_path, **flags), tmp_path, kill_at=11)


def spoil(monkeypatch: pytest.MonkeyPatch, which: Callable[[Task], bool]) -> None:
    """Make the updates of these tasks not finite."""
    train = Trainer.train

    def trained(self: Trainer, task: Task, *rest: Any) -> Update:
        update = train(self, task, *rest)
        return replace(update, params=update.params * np.float32("nan")) if which(task) else update

    monkeypatch.setattr(Trainer, "train", trained)


@pytest.mark.parametrize("flags", [{}, {"concurrency": 3, "polyak_fraction": 0.3}])
def test_run_continues_without_a_bad_client(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One client always fails, and another client fails once.

    A run that is killed and resumed has the same log as an undisturbed run, and the log is consistent.
    """
    spoil(monkeypatch, lambda task: task.client == 2 or (task.client, task.turn) == (1, 1))
    whole = check_resume(small(tmp_path, **flags), tmp_path, kill_at=11)
    assert [entry["client"] for entry in whole.summary["quarantined"]] == [2]  # type: ignore[attr-defined]
    assert whole.summary["dropped"] == 3
    assert np.isfinite(whole.evals["loss"]).all()


def test_polyak_mean_includes_rounds_with_a_failed_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mean after each round is computed from the plain models of the same run."""
    spoil(monkeypatch, lambda task: task.client == 3)
    flags: dict[str, Any] = {"method": "fedavg", "updates": None, "polyak_fraction": 0.5}
    means, plain = [], []
    for rounds in (1, 2, 3):
        directory = run(
            **small(tmp_path, rounds=rounds, checkpoint_every=rounds, **flags), out=tmp_path / f"run-{rounds}"
        ).directory
        state = read_state(newest_first(directory / CHECKPOINTS)[0].read_bytes())["server"]
        means.append(state["mean"])
        plain.append(state["params"].astype(np.float64))
    assert History(directory).summary["dropped"] > 0
    expected = plain[0]
    for t in (1, 2):
        expected = expected + (plain[t] - expected) / (0.5 * t + 1)
    np.testing.assert_allclose(means[-1], expected, atol=1e-6)


def test_weights_on_the_wall_clock_follow_the_learned_durations(tmp_path: Path) -> None:
    """Each update is held back until the modelled duration of its task has passed.

    The run also learns the real time of the worker.
    """
    directory = run(
        **small(tmp_path, override={"update.participation_correction": 0.5}, clock="wall", time_scale=0.01),
        out=tmp_path / "wall",
    ).directory
    assert "consistent" in replay(directory)
    mixes: dict[int, set[float]] = {}
    for line in lines(directory):
        if line["kind"] == "commit":
            mixes.setdefault(line["client"], set()).add(line["weight"])
    assert max(map(len, mixes.values())) > 1


def test_replay_finds_a_wrong_weight(tmp_path: Path) -> None:
    directory = run(
        **small(tmp_path, override={"update.participation_correction": 0.5}), out=tmp_path / "run"
    ).directory
    log = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    commit = next(line for line in log if line["kind"] == "commit")
    commit["weight"] *= 1.01
    (directory / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    with pytest.raises(Inconsistent, match="weight"):
        replay(directory)


def test_model_pt_is_the_polyak_mean_and_the_summary_has_its_fraction(tmp_path: Path) -> None:
    directory = run(**small(tmp_path, checkpoint_every=25), out=tmp_path / "run").directory
    state = read_state(newest_first(directory / CHECKPOINTS)[0].read_bytes())["server"]
    model = torch.load(directory / "model.pt", weights_only=True)
    values = np.concatenate([tensor.numpy().ravel() for tensor in model.values()])
    np.testing.assert_array_equal(np.sort(values), np.sort(state["mean"]))
    assert not np.array_equal(state["mean"], state["params"])
    history = History(directory)
    assert history.summary["average"] == history.config["method"]["schedule"]["polyak_fraction"] == 0.1
    assert "average" not in run(**small(tmp_path, polyak_fraction=0), out=tmp_path / "plain").summary


@pytest.mark.parametrize(
    ("flags", "field", "got"),
    [
        (
            {"method": "ace", "override": {"update.participation_correction": 0.5}},
            "update.participation_correction",
            0.5,
        ),
        ({"method": "fed-raa", "override": {"update.server_gain": 2.0}}, "update.server_gain", 2.0),
        ({"method": "splitfed", "updates": None, "rounds": 2}, "local_steps", "auto:3"),
    ],
)
def test_option_without_effect_on_the_method_is_refused(
    flags: dict[str, Any], field: str, got: object, tmp_path: Path
) -> None:
    with refuses(field, flags["method"], got=got):
        run(**small(tmp_path, **flags), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
