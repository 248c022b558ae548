"""A run that is killed anywhere and resumed ends with the bits and the log of an undisturbed run."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from equal_runs import lines, same_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from needed_models import needed_model
from refusals import refuses

from benchmarks.system.killing import KillAt, Killed
from fedraa.api import resume, run
from fedraa.callbacks.callback_list import CallbackList
from fedraa.cli.main import main
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.engine import session
from fedraa.engine.build import build_run
from fedraa.engine.local_engine import run_here
from fedraa.errors import RunWarning
from fedraa.replay.replay import replay
from fedraa.rundir.checkpoint import Saver, newest_first
from fedraa.rundir.digests import write_seal
from fedraa.rundir.file_names import CHECKPOINTS, CLIENTS, EVALS, EVENTS
from fedraa.rundir.history import History
from fedraa.settings.resolve import drop_unused_options

METHODS = list_methods()

SMALL = {"engine": "local", "hidden": (8,), "clients": 4, "local_steps": 2, "checkpoint_every": 3, "seed": 5}


def experiment(method: str, out: Path, **changes: object) -> Experiment:
    """Return an experiment with a few dozen commits of a method."""
    limit = {"updates": 25} if METHODS[method].asynchronous else {"rounds": 5}
    small = {**SMALL, **needed_model(method), "buffer_size": 3, **limit}
    return drop_unused_options(Experiment(**{"method": method, **small, "out": out, **changes}))


def commits(directory: Path) -> int:
    return sum(line["kind"] == "commit" for line in lines(directory))


def run_until_killed(trial: Experiment, commit: int) -> None:
    with pytest.raises(Killed):
        run(trial, callbacks=[KillAt(commit)])


# These methods have one of each kind of content of a checkpoint. Other methods have the same kinds.
VARIED = ("fed-raa", "fed-raa-sync", "fedbuff", "fedadam", "scaffold", "mofedsam", "prunefl", "splitfed", "ram-fed")
VARIED += ("subdismo", "shuffled", "ca2fl", "ringleader", "fedgmr", "fed-quilt", "mr-asyncfl", "generalized-asyncsgd")
KILLED = [pytest.param(name, marks=() if name in VARIED else pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("method", KILLED)
def test_run_killed_twice_and_resumed_is_the_same_run(method: str, tmp_path: Path) -> None:
    undisturbed, directory = tmp_path / "undisturbed", tmp_path / "killed"
    run(experiment(method, undisturbed))
    rng = np.random.default_rng(list(METHODS).index(method))
    total = commits(undisturbed)
    first = int(rng.integers(1, total))
    run_until_killed(experiment(method, directory), first)
    with pytest.raises(Killed):
        resume(directory, callbacks=[KillAt(min(total, first + int(rng.integers(3))))], trust=True)
    resume(directory, trust=True)
    same_run(directory, undisturbed)


# These options change submodels and costs, and no method has them by default.
OPTIONS: dict[str, dict[str, object]] = {
    "in flight": {"method": "fed-raa", "scheduler": "gre-raa(in_flight=True)"},
    "server clock": {
        "method": "fed-raa",
        "staleness": "polynomial",
        "override": {"schedule.staleness_clock": "server"},
    },
    "cut layers": {"method": "heterofl", "hidden": (8, 8), "cut_layers": ("3",)},
    "capacities": {"method": "ram-fed", "capacities": "auto"},
    "region schedule": {"method": "ram-fed", "submodel": "region-schedule(coverage=1, trained=2)"},
    "units": {"method": "subdismo", "submodel": "four-way(form='units', parts=2)"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_resumed_run_with_an_option_is_the_same_run(name: str, tmp_path: Path) -> None:
    undisturbed, directory = tmp_path / "undisturbed", tmp_path / "killed"
    fields: dict[str, Any] = dict(OPTIONS[name])
    method = fields.pop("method")
    run(experiment(method, undisturbed, **fields))
    run_until_killed(experiment(method, directory, **fields), 7)
    resume(directory)
    same_run(directory, undisturbed)
    replay(directory)


@pytest.mark.parametrize("every", [7, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_run_killed_at_any_commit_resumes_to_the_same_run(method: str, every: int, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    run(experiment(method, undisturbed))
    for commit in range(1, commits(undisturbed), every):
        directory = tmp_path / str(commit)
        run_until_killed(experiment(method, directory), commit)
        resume(directory)
        same_run(directory, undisturbed)


@pytest.mark.parametrize("tail", [b"", b'{"seq":', b'{"seq":99,"kind":"commit"}\n{"se'])
def test_resume_repairs_an_incomplete_log(tail: bytes, tmp_path: Path) -> None:
    # A lost line was written after the checkpoint.
    often = {"eval_every": 1}
    run(experiment("fed-raa", tmp_path / "undisturbed", **often))
    directory = tmp_path / "killed"
    run_until_killed(experiment("fed-raa", directory, **often), 14)
    for name in (EVENTS, EVALS):
        content = (directory / name).read_bytes()
        (directory / name).write_bytes(content[: len(content) - 3 * (not tail)] + tail)
    resume(directory)
    same_run(directory, tmp_path / "undisturbed")


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "ahead of the log"])
def test_resume_skips_a_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    run(experiment("fed-raa", tmp_path / "undisturbed"))
    directory = tmp_path / "killed"
    run_until_killed(experiment("fed-raa", directory), 14)
    newest = newest_first(directory / CHECKPOINTS)[0]
    content = newest.read_bytes()
    if damage == "torn":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        newest.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        log = (directory / EVENTS).read_text().splitlines(keepends=True)
        marks = [number for number, line in enumerate(log) if json.loads(line)["kind"] == "checkpoint"]
        (directory / EVENTS).write_text("".join(log[: marks[-1]]))
    with pytest.warns(RunWarning, match="resumes from"):
        resume(directory)
    same_run(directory, tmp_path / "undisturbed")


def test_resume_without_a_usable_checkpoint_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run_until_killed(experiment("fed-raa", tmp_path), 14)
    for path in newest_first(tmp_path / CHECKPOINTS):
        path.write_bytes(b"junk")
    before = (tmp_path / EVENTS).read_bytes()
    with pytest.raises(ValueError, match=r"^run: .*ckpt"):
        resume(tmp_path)
    assert (tmp_path / EVENTS).read_bytes() == before


def test_server_killed_before_its_first_event_starts_again(tmp_path: Path) -> None:
    trial = experiment("fed-raa", tmp_path)
    for name in (EVENTS, EVALS):
        (tmp_path / name).touch()
    run_here(build_run(trial), tmp_path, CallbackList(), resume=True)
    assert History(tmp_path).summary["reason"] == "steps"


def test_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    run(experiment("fed-raa", tmp_path / "undisturbed"))
    directory = tmp_path / "killed"
    run_until_killed(experiment("fed-raa", directory), 2)
    shutil.rmtree(directory / CHECKPOINTS)
    with pytest.warns(RunWarning, match="no checkpoint"):
        resume(directory)
    same_run(directory, tmp_path / "undisturbed")


def test_run_interrupted_while_it_saves_a_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    # As in a notebook, `interrupt` keeps the run's objects alive.
    with (
        mock.patch.object(Saver, "wait", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt) as interrupt,
    ):
        run(experiment("fed-raa", directory))
    with pytest.warns(RunWarning):
        assert resume(directory).summary["steps"] == 25
    del interrupt


def test_log_of_an_ended_run_is_on_the_disk_before_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: dict[int, int] = {}
    before_summary: dict[int, int] = {}

    def record_flush(descriptor: int) -> None:
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size

    def seal(directory: Path, pending: Mapping[str, str]) -> None:
        before_summary.update(flushed)
        write_seal(directory, pending)

    monkeypatch.setattr(os, "fsync", record_flush)
    monkeypatch.setattr(session, "write_seal", seal)
    directory = run(experiment("fed-raa", tmp_path / "run", client_evals="final")).directory
    for name in (EVENTS, EVALS, CLIENTS):
        status = (directory / name).stat()
        assert before_summary[status.st_ino] == status.st_size > 0


def test_resumed_run_reaches_the_target_at_the_same_time(tmp_path: Path) -> None:
    changes: dict[str, object] = {"target_accuracy": 0.3, "updates": 400, "eval_every": 5}
    undisturbed, directory = tmp_path / "undisturbed", tmp_path / "killed"
    history = run(experiment("fed-raa", undisturbed, **changes))
    assert history.summary["reason"] == "accuracy"
    run_until_killed(experiment("fed-raa", directory, **changes), int(str(history.summary["steps"])) - 1)
    resume(directory)
    same_run(directory, undisturbed)


def test_resumed_run_on_the_wall_clock_applies_every_update_once(tmp_path: Path) -> None:
    trial = experiment("fed-raa", tmp_path, clock="wall", time_scale=0.01, updates=60)
    run_until_killed(trial, 20)
    resume(tmp_path)
    history = lines(tmp_path)
    answered = [line["task"] for line in history if line["kind"] == "commit"]
    assert len(answered) == len(set(answered)) == 60
    assert [line["seq"] for line in history] == list(range(len(history)))
    times = [float(str(line["t"])) for line in history if line["kind"] == "commit"]
    assert times == sorted(times)


def test_runs_that_cannot_be_resumed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^run: "):
        resume(tmp_path)
    run(experiment("fed-raa", tmp_path / "ended"))
    with refuses("run", "--updates", got=tmp_path / "ended"):
        resume(tmp_path / "ended")
    run_until_killed(experiment("fed-raa", tmp_path / "killed"), 9)
    config = tmp_path / "killed" / "config.json"
    described = json.loads(config.read_text())
    described["experiment"]["hidden"] = [9]
    config.write_text(json.dumps(described))
    with refuses("run", got=tmp_path / "killed"):
        resume(tmp_path / "killed")
    config.write_text("{")
    with pytest.raises(ValueError, match=r"^run: .*JSON"):
        resume(tmp_path / "killed")


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("killed_run") / "run"
    run_until_killed(experiment("fed-raa", directory), 9)
    return directory


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resume_with_a_damaged_config_exits_with_2_and_changes_nothing(
    data: st.DataObject, killed_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, log = killed_run / "config.json", killed_run / EVENTS
    content, events = config.read_bytes(), log.read_bytes()
    start = data.draw(st.integers(0, content.rindex(b"}") - 1))
    junk = data.draw(st.binary(max_size=8)) if data.draw(st.booleans()) else b""
    config.write_bytes(content[:start] + junk)
    try:
        assert main(["resume", str(killed_run), "--quiet"]) == 2
    finally:
        config.write_bytes(content)
    message = capsys.readouterr().err
    assert message.startswith("fedraa: ")
    assert message.count("\n") == 1
    assert log.read_bytes() == events
