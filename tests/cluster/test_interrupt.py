"""Ctrl-C, SIGHUP and kill -9 on runs of the command line: processes end, files stay, and the run can be resumed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from running import FIELDS, PATIENCE, resume_to_end, started, until
from same_run import same

from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import run
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment
from fedraa.rundir import run_lock
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.file_names import CHECKPOINTS
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

UPDATES = 400


def interrupt(process: subprocess.Popen[str]) -> None:
    """Send Ctrl-C to every process of the foreground group, like a terminal."""
    os.killpg(process.pid, signal.SIGINT)


def have_ended(processes: list[int]) -> bool:
    """Return True if these processes have ended, or are about to be ended by Ray's reaper."""
    return not any(process_title(process) for process in processes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(Experiment(**FIELDS, updates=UPDATES, engine="local", out=tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.linux
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_ctrl_c_leaves_a_checkpoint_but_no_processes_or_partial_files(
    engine: str, undisturbed: History, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    memory = set(Path("/dev/shm").iterdir())
    with started(out, "--updates", str(UPDATES), "--engine", engine) as process:
        below = list_descendants(process.pid)
        interrupt(process)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert "with a checkpoint" in said
        assert said.strip().endswith(f": fedraa resume {out}")
        until(lambda: have_ended(below))
    assert set(Path("/dev/shm").iterdir()) <= memory
    files = ["checkpoints", "config.json", "evals.csv", "events.jsonl", "partition.npz"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert not list(out.rglob("*.partial"))
    resume_to_end(out)
    same(out, undisturbed)


@pytest.mark.linux
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_closed_terminal_leaves_a_checkpoint_and_the_run_resumes(
    engine: str, undisturbed: History, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with started(out, "--updates", str(UPDATES), "--engine", engine) as process:
        below = list_descendants(process.pid)
        process.send_signal(signal.SIGHUP)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert said.strip().endswith(f": fedraa resume {out}")
        until(lambda: have_ended(below))
    assert newest_first(out / CHECKPOINTS)
    resume_to_end(out)
    same(out, undisturbed)


@pytest.mark.linux
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_second_ctrl_c_ends_the_run_without_partial_files_and_it_resumes(
    engine: str, undisturbed: History, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with started(out, "--updates", str(UPDATES), "--engine", engine) as process:
        below = list_descendants(process.pid)
        interrupt(process)
        interrupt(process)
        assert process.wait(timeout=PATIENCE) == 130
        until(lambda: have_ended(below))
    assert not list(out.rglob("*.partial"))
    resume_to_end(out)
    same(out, undisturbed)


@pytest.mark.linux
@pytest.mark.slow
def test_cluster_of_a_killed_driver_ends_and_the_run_resumes(undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out, "--updates", str(UPDATES), "--engine", "ray") as process:
        below = list_descendants(process.pid)
        process.kill()
        process.wait()
        resume_to_end(out)
        until(lambda: have_ended(below))
    same(out, undisturbed)


@pytest.mark.linux
@pytest.mark.slow
def test_killed_server_restarts_and_the_run_keeps_its_bits(undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out, "--updates", str(UPDATES), "--engine", "ray") as process:
        (server,) = [
            child for child in list_descendants(process.pid) if process_title(child).startswith("ray::ParameterServer")
        ]
        os.kill(server, signal.SIGKILL)
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
    assert len(newest_first(out / CHECKPOINTS)) == 2
    same(out, undisturbed)


def test_one_run_directory_has_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_lock, "LOCK_SECONDS", 0.5)
    out = tmp_path / "run"
    with started(out, "--updates", str(UPDATES), "--engine", "local") as first:
        os.kill(first.pid, signal.SIGSTOP)
        assert main(["resume", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedraa: run: ")
    assert str(out) in said
