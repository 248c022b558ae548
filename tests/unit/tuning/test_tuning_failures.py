"""Tunings in which a method has no result, or in which a process of a trial is killed."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl
from fedraa.errors import RunFailed, Unwritable
from fedraa.settings.tuned import read_tuned
from fedraa.tuning import attempt, work
from fedraa.tuning.attempt import Attempt
from fedraa.tuning.folder import tuning_folder
from fedraa.tuning.journal import Journal, Trial

SMALL: dict[str, Any] = {"clients": 2, "hidden": (4,), "local_steps": 2, "rounds": 2, "engine": "local"}
METHODS = ["fedavg", "fedprox"]


def test_values_of_the_other_methods_are_written_if_one_method_has_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail_fedprox(planned: Attempt) -> Trial:
        if planned.method == "fedprox":
            return Trial(planned.method, planned.number, planned.values, "failed", why="it diverged")
        return Trial(planned.method, planned.number, planned.values, "done", 0.5)

    monkeypatch.setattr(work, "run_attempt", fail_fedprox)
    with refuses("fedprox", "it diverged", "tuned.toml"):
        fl.tune(METHODS, {"lr": [0.1, 0.2]}, trials=2, out=tmp_path / "tune", **SMALL)
    assert read_tuned(tmp_path / "tune" / "tuned.toml").keys() == {"fedavg"}


def test_killed_process_of_a_trial_ends_the_tuning_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def processes(jobs: int, prepare: object) -> Iterator[Callable[..., Future[Trial]]]:
        def submit(function: object, planned: Attempt) -> Future[Trial]:
            future: Future[Trial] = Future()
            if planned.number:
                future.set_exception(BrokenProcessPool())
            else:
                future.set_result(Trial(planned.method, 0, planned.values, "done", 0.5))
            return future

        yield submit

    monkeypatch.setattr(work, "open_processes", processes)
    with pytest.raises(RunFailed, match="fewer --jobs") as caught:
        fl.tune("fedavg", ["lr=0.1,0.2"], trials=2, jobs=2, out=tmp_path / "tune", **SMALL)
    assert caught.value.field == "jobs"
    assert len(Journal(tmp_path / "tune").trials) <= 1


def test_trial_that_finds_the_disk_full_ends_the_tuning_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk says nothing about the values of the trial."""
    settings: dict[str, Any] = {"trials": 2, "out": tmp_path / "tune", **SMALL}
    run = attempt.run

    def fill_disk(experiment: Any, **more: Any) -> Any:
        if experiment.lr == 0.2:
            raise Unwritable(str(experiment.out), "it cannot be written: No space left on device")
        return run(experiment, **more)

    monkeypatch.setattr(attempt, "run", fill_disk)
    with pytest.raises(Unwritable, match="same command"):
        fl.tune("fedavg", {"lr": [0.1, 0.2]}, **settings)
    recorded = [trial.values["lr"] for trial in Journal(tmp_path / "tune").trials]
    assert 0.2 not in recorded
    monkeypatch.setattr(attempt, "run", run)
    table = fl.tune("fedavg", {"lr": [0.1, 0.2]}, **settings).table
    assert sorted(table["lr"]) == [0.1, 0.2]
    assert set(table["state"]) <= {"done", "stopped"}


@pytest.mark.parametrize("line", [b"garbage\n", b"[" * 100_000 + b"\n", b'{"values": []}\n'], ids=len)
def test_damaged_line_of_the_journal_is_refused_and_no_trial_is_removed(line: bytes, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.add(Trial("m", number, {"lr": 0.1}, "done", 0.5))
    path = tmp_path / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    before = path.read_bytes()
    with refuses("out", "line 2", str(path)):
        Journal(tmp_path)
    assert path.read_bytes() == before


def test_pipe_with_the_name_of_the_journal_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trials.jsonl")
    with refuses("out", "trials.jsonl"):
        Journal(tmp_path)


def test_nested_text_in_place_of_the_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text("[" * 100_000)
    with refuses("out", str(tmp_path)), tuning_folder(tmp_path, {}):
        pass
