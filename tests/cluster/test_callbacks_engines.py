"""Callbacks run in the user's process on every engine, and a run that they end has the same bits on every engine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from equal_runs import lines
from running import until

from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import resume, run
from fedraa.callbacks import Callback, EarlyStopping, Event, RunStart
from fedraa.config.experiment import Experiment
from fedraa.replay.replay import replay
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.file_names import CHECKPOINTS, EVENTS, SUMMARY
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

SETTINGS: dict[str, Any] = {"hidden": (8,), "clients": 4, "local_steps": 2, "updates": 300, "checkpoint_every": 10}
ENGINES: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "ray 1": {"engine": "ray", "workers": 1},
    "ray 2": {"engine": "ray", "workers": 2},
}


def experiment(out: Path, engine: str, **changes: Any) -> Experiment:
    return Experiment(**SETTINGS | {"eval_every": 5, "out": out} | ENGINES[engine] | changes)


class Records(Callback):
    """A callback that records every call of this process in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.starts: list[bool] = []
        self.process = os.getpid()

    def on_start(self, run: RunStart) -> None:
        self.starts.append(run.resumed)
        self.calls = []

    def on_dispatch(self, event: Event) -> None:
        self._called(event)

    def on_commit(self, event: Event) -> None:
        self._called(event)

    def on_round(self, event: Event) -> None:
        self._called(event)

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self._called(step, t, dict(metrics))

    def on_end(self, event: Event) -> None:
        self._called(event)

    def _called(self, *given: object) -> None:
        assert os.getpid() == self.process
        self.calls.append(given)


class NonBlockingRecords(Records):
    blocking = False


class StopAt(Callback):
    """A callback that ends the run at a commit."""

    def __init__(self, commit: int) -> None:
        self.commit, self.seen = commit, 0

    def on_start(self, run: RunStart) -> None:
        self.seen = 0

    def on_commit(self, event: Event) -> bool:
        self.seen += 1
        return self.seen == self.commit


class FailAt(StopAt):
    def on_commit(self, event: Event) -> bool:
        if super().on_commit(event):
            raise ArithmeticError("seven")
        return False


class NonBlockingFailAt(FailAt):
    blocking = False


def same(histories: list[History]) -> None:
    first, *others = histories
    for history in others:
        assert lines(history.directory) == lines(first.directory)
        assert history.summary["model_sha256"] == first.summary["model_sha256"]
        assert (history.directory / "model.pt").read_bytes() == (first.directory / "model.pt").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("kind", [Records, NonBlockingRecords])
def test_callback_receives_the_same_calls_on_every_engine(kind: type[Records], tmp_path: Path) -> None:
    seen = {engine: kind() for engine in ("local", "ray 2")}
    histories = [run(experiment(tmp_path / engine, engine, updates=60), callbacks=[seen[engine]]) for engine in seen]
    assert len(seen["local"].calls) > 120
    assert seen["local"].calls == seen["ray 2"].calls
    same(histories)


@pytest.mark.usefixtures("cluster")
def test_callback_stops_a_run_within_a_round_at_the_same_bits_on_every_engine(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"method": "fedavg", "updates": None, "rounds": 9, "eval_every": 1}
    seen = {engine: Records() for engine in ("local", "ray 1")}
    histories = [
        run(experiment(tmp_path / engine, engine, **flags), callbacks=[seen[engine], StopAt(6)]) for engine in seen
    ]
    assert histories[0].summary["steps"] == 1  # of four commits; two of the next round are lost
    assert seen["local"].calls == seen["ray 1"].calls
    same(histories)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "callback",
    [EarlyStopping(patience=2), StopAt(37)],
    ids=lambda callback: type(callback).__name__,
)
def test_a_callback_ends_a_run_at_the_same_bits_on_every_engine(callback: Callback, tmp_path: Path) -> None:
    histories = [run(experiment(tmp_path / engine, engine), callbacks=[callback]) for engine in ENGINES]
    assert histories[0].summary["reason"] == "callback"
    assert histories[0].summary["by"] == type(callback).__name__
    assert int(str(histories[0].summary["steps"])) < 300
    same(histories)
    for history in histories:
        assert "ended by callback" in replay(history.directory)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("failing", [pytest.param(FailAt, marks=pytest.mark.slow), NonBlockingFailAt])
def test_callback_error_reaches_the_user_after_a_checkpoint(failing: type[FailAt], tmp_path: Path) -> None:
    out = tmp_path / "run"
    updates = {"updates": 60 if failing is FailAt else 2000}
    with pytest.raises(ArithmeticError, match=r"^seven\b") as caught:
        run(experiment(out, "ray 1", checkpoint_every=None, **updates), callbacks=[failing(7)])
    (note,) = caught.value.__notes__
    assert note.endswith(f": fedraa resume {out}")
    assert not (out / SUMMARY).exists()
    committed = sum(line["kind"] == "commit" for line in lines(out))
    assert (committed == 7) if failing is FailAt else (7 <= committed < 2000)
    assert len(newest_first(out / CHECKPOINTS)) == 2  # one from the start, and one from the error
    if failing is FailAt:
        here = run(experiment(tmp_path / "here", "local", checkpoint_every=None, **updates))
        same([resume(out), here])


@pytest.mark.linux
@pytest.mark.usefixtures("cluster")
def test_callbacks_restart_after_a_server_death_and_end_the_run_as_before(tmp_path: Path) -> None:
    class KillsServer(Callback):
        blocking = False
        killed: tuple[int, ...] = ()

        def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
            if step == 20 and not self.killed:
                (server,) = [
                    pid
                    for pid in list_descendants(os.getpid())
                    if process_title(pid).startswith("ray::ParameterServer")
                ]
                os.kill(server, signal.SIGKILL)
                self.killed = (server,)

    here, there = Records(), Records()
    local = run(experiment(tmp_path / "local", "local"), callbacks=[here, StopAt(37)])
    ray = run(experiment(tmp_path / "ray", "ray 1"), callbacks=[there, StopAt(37), KillsServer()])
    assert there.starts == [False, True]
    assert there.calls == here.calls
    same([local, ray])


SCRIPT = """
import json, sys
from pathlib import Path
import fedraa as fl

class Slow(fl.Callback):
    def on_eval(self, step, t, metrics):
        if step == 20:
            Path(sys.argv[2]).touch()
            import time; time.sleep(600)

fl.run(fl.Experiment(**json.loads(sys.argv[1])), callbacks=[fl.EarlyStopping(patience=9), Slow()])
"""


@pytest.mark.linux
@pytest.mark.parametrize("engine", ["local", pytest.param("ray 1", marks=pytest.mark.slow)])
def test_run_of_a_driver_killed_in_a_callback_leaves_no_server_and_resumes(engine: str, tmp_path: Path) -> None:
    undisturbed = run(experiment(tmp_path / "undisturbed", "local"), callbacks=[EarlyStopping(patience=9)])
    settings = SETTINGS | {"eval_every": 5, "out": str(tmp_path / "run")} | ENGINES[engine]

    command = [sys.executable, "-c", SCRIPT, json.dumps(settings), str(tmp_path / "mark")]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        until(lambda: (tmp_path / "mark").exists())
        below = list_descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(process_title(each).startswith("ray::ParameterServer") for each in below))
    assert (tmp_path / "run" / EVENTS).read_text().count('"commit"') == 20
    same([resume(tmp_path / "run", callbacks=[EarlyStopping(patience=9)]), undisturbed])
