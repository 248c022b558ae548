"""Processes that freeze, Ray's own that die, a server that hears no Ctrl-C: equal bits, and nobody waits for long."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mortal import with_its_parent
from same_run import same

from actors.cluster import engine
from actors.cluster.processes import crowded
from actors.pool.pulse import Heartbeat
from benchmarks.system.processes import descendants, title
from fedraa.api import run
from fedraa.callbacks import Callback, Event
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History
from fedraa.rundir.layout import EVENTS

pytestmark = pytest.mark.cluster

FLAGS: dict[str, Any] = {"hidden": (8,), "clients": 4, "local_epochs": 1, "updates": 600, "checkpoint_every": 50}
PATIENCE = 150  # seconds
RAYLET, GCS, SERVER = "/raylet/raylet", "/gcs/gcs_server", "ray::ParameterServer"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(Experiment(**FLAGS, engine="local", out=tmp_path_factory.mktemp("undisturbed")))


class Freeze(Callback):
    """Stops a process below this one at the 60th commit."""

    waits = False

    def __init__(self, name: str) -> None:
        self.name, self.commits, self.stopped = name, 0, 0

    def on_commit(self, event: Event) -> None:
        self.commits += 1
        if self.commits >= 60 and not self.stopped:
            self.stopped = max(pid for pid in descendants(os.getpid()) if title(pid).startswith(self.name))
            os.kill(self.stopped, signal.SIGSTOP)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("frozen", "changes"),
    [
        ("ray::ShardActor", {"server_shards": 2}),
        pytest.param("ray::Worker", {}, marks=pytest.mark.slow),
        pytest.param(SERVER, {}, marks=pytest.mark.slow),
        pytest.param("ray::DataHost", {"data_on_nodes": True}, marks=pytest.mark.slow),
    ],
)
def test_who_freezes_is_as_good_as_dead(
    frozen: str, changes: dict[str, Any], undisturbed: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "HEARTBEAT", Heartbeat(every=0.5, bound=3.0))
    freeze, started = Freeze(frozen), time.monotonic()
    run(Experiment(**FLAGS, **changes, workers=1, out=tmp_path / "run"), callbacks=[freeze])
    assert freeze.stopped
    assert time.monotonic() - started < 60 * crowded()
    assert not Path("/proc", str(freeze.stopped)).exists()
    same(tmp_path / "run", undisturbed)


@contextmanager
def started(out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run of the command line on Ray, some way into its log."""
    given = ["--hidden", "8", "--clients", "4", "--local-epochs", "1", "--updates", "600", "--checkpoint-every", "50"]
    command = [sys.executable, "-m", "fedraa", "run", *given, "--workers", "1", "--out", str(out), "--quiet", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=with_its_parent
    )
    try:
        until(lambda: (out / EVENTS).exists() and (out / EVENTS).read_text().count('"commit"') >= 60)
        yield process
    finally:
        process.kill()
        process.wait()


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def below(process: subprocess.Popen[str], name: str) -> int:
    return next(pid for pid in descendants(process.pid) if name in title(pid))


@pytest.mark.parametrize("dies", [RAYLET, pytest.param(GCS, marks=pytest.mark.slow)])
def test_the_run_goes_on_with_a_new_cluster(dies: str, undisturbed: History, tmp_path: Path) -> None:
    with started(tmp_path / "run", "--restarts", "1") as process:
        os.kill(below(process, dies), signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    same(tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("dies", "name"), [(RAYLET, "raylet"), (GCS, "GCS")])
def test_a_dead_cluster_ends_a_run_in_one_sentence(dies: str, name: str, undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out) as process:
        os.kill(below(process, dies), signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines()[-1] == f"fedraa: Ray's {name} died; go on with: fedraa resume {out}"
    assert "raylet)" not in said  # what Ray itself would print
    subprocess.run([sys.executable, "-m", "fedraa", "resume", str(out), "--quiet"], check=True)
    same(out, undisturbed)


@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_server_is_frozen(undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out) as process:
        server = below(process, SERVER)
        os.kill(server, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE)
        assert time.monotonic() - pressed < 10 * crowded()
    assert process.returncode == 130
    assert said.endswith(f"fedraa: stopped as of the last checkpoint; go on with: fedraa resume {out}\n")
    assert not Path("/proc", str(server)).exists()
    subprocess.run([sys.executable, "-m", "fedraa", "resume", str(out), "--quiet"], check=True)
    same(out, undisturbed)
