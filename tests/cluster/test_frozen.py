"""Frozen processes, dead processes of Ray, and a server without Ctrl-C: runs end soon and with equal bits."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from running import FIELDS, PATIENCE, resume_to_end, started, until
from same_run import same

from actors.cluster import engine
from actors.cluster.processes import load_factor
from actors.pool.liveness import Heartbeat
from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import run
from fedraa.callbacks import Callback, Event
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

UPDATES = 600
QUIETLY = ("--updates", str(UPDATES), "--quiet")
RAYLET, GCS, SERVER = "/raylet/raylet", "/gcs/gcs_server", "ray::ParameterServer"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(Experiment(**FIELDS, updates=UPDATES, engine="local", out=tmp_path_factory.mktemp("undisturbed")))


class Freeze(Callback):
    """A callback that stops a child process at the 60th commit."""

    blocking = False

    def __init__(self, name: str) -> None:
        self.name, self.commits, self.stopped = name, 0, 0

    def on_commit(self, event: Event) -> None:
        self.commits += 1
        if self.commits >= 60 and not self.stopped:
            self.stopped = max(pid for pid in list_descendants(os.getpid()) if process_title(pid).startswith(self.name))
            os.kill(self.stopped, signal.SIGSTOP)


@pytest.mark.linux
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("frozen", "changes"),
    [
        pytest.param("ray::ShardActor", {"server_shards": 2}, marks=pytest.mark.slow),
        pytest.param("ray::Worker", {}, marks=pytest.mark.slow),
        pytest.param(SERVER, {}, marks=pytest.mark.slow),
        pytest.param("ray::DataHost", {"data_on_nodes": True}, marks=pytest.mark.slow),
    ],
)
def test_frozen_actor_counts_as_dead_and_the_run_keeps_its_bits(
    frozen: str, changes: dict[str, Any], undisturbed: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "HEARTBEAT", Heartbeat(every=0.5, bound=3.0))
    freeze, began = Freeze(frozen), time.monotonic()
    run(Experiment(**FIELDS, **changes, updates=UPDATES, workers=1, out=tmp_path / "run"), callbacks=[freeze])
    assert freeze.stopped
    assert time.monotonic() - began < 60 * load_factor()
    # Ray may remove the process after the run.
    until(lambda: not Path("/proc", str(freeze.stopped)).exists())
    same(tmp_path / "run", undisturbed)


def descendant_pid(process: subprocess.Popen[str], name: str) -> int:
    return next(pid for pid in list_descendants(process.pid) if name in process_title(pid))


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.parametrize("dies", [RAYLET, GCS])
def test_run_continues_on_a_new_cluster_after_a_process_of_ray_dies(
    dies: str, undisturbed: History, tmp_path: Path
) -> None:
    with started(tmp_path / "run", *QUIETLY, "--restarts", "1") as process:
        os.kill(descendant_pid(process, dies), signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    same(tmp_path / "run", undisturbed)


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.parametrize(("dies", "name"), [(RAYLET, "raylet"), (GCS, "GCS")])
def test_dead_cluster_ends_the_run_with_an_error_and_the_run_can_be_resumed(
    dies: str, name: str, undisturbed: History, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with started(out, *QUIETLY) as process:
        os.kill(descendant_pid(process, dies), signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(f"fedraa: cluster: Ray's {name} ")
    assert said.endswith(f"fedraa resume {out}\n")
    # Users must not see the output of Ray.
    assert "raylet)" not in said
    resume_to_end(out)
    same(out, undisturbed)


@pytest.mark.linux
@pytest.mark.slow
def test_ctrl_c_ends_a_run_whose_server_is_frozen(undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out, *QUIETLY) as process:
        server = descendant_pid(process, SERVER)
        os.kill(server, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE)
        assert time.monotonic() - pressed < 10 * load_factor()
    assert process.returncode == 130
    assert "last checkpoint" in said
    assert said.endswith(f": fedraa resume {out}\n")
    assert not Path("/proc", str(server)).exists()
    resume_to_end(out)
    same(out, undisturbed)
