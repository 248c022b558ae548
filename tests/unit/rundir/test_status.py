"""The status of runs follows from their files, and a run on this machine can be stopped by name."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.api import resume, run
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment
from fedraa.errors import RunFailed
from fedraa.rundir import run_lock
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.failures import name_clients
from fedraa.rundir.file_names import EVENTS, FAILURE, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.run_lock import WRITER, interrupt_run, is_written, lock_log
from fedraa.rundir.status import Status, read_status, read_statuses, runs_below
from fedraa.rundir.summary import NO_STEP

FLAGS = ["--hidden", "8", "--clients", "4", "--local-steps", "2", "--engine", "local", "--quiet"]


def test_error_about_a_directory_without_configuration_says_that_its_run_may_be_starting(tmp_path: Path) -> None:
    with refuses("run") as caught:
        read_status(tmp_path)
    assert "starting" not in str(caught.value)
    (tmp_path / WRITER).write_text("host 1")
    with refuses("run", "starting"):
        read_status(tmp_path)


def test_status_distinguishes_an_ended_run_from_a_killed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    history = run(Experiment(hidden=(8,), clients=4, local_steps=2, updates=12, engine="local", out=Path("runs/one")))
    end = history.lines()[-1]
    accuracy = float(history.evals["accuracy"].iloc[-1])
    assert read_status(Path("runs/one")) == Status("runs/one", "ended by steps", 12, float(str(end["t"])), accuracy, 0)
    (history.directory / SUMMARY).unlink()
    log = history.directory / EVENTS
    fault = '{"seq":0,"kind":"fault","t":9.5,"wall":1,"task":1,"worker":0,"error":"worker died","action":"retry"}\n'
    # The last line is torn.
    log.write_text(log.read_text() + fault + '{"seq":1,"ki')
    assert read_status(Path("runs/one")) == Status("runs/one", "interrupted", 12, 9.5, accuracy, 1)
    assert history.lines()[-1]["kind"] == "fault"
    assert runs_below(Path("runs")) == [Path("runs/one")]
    assert main(["status"]) == 0
    assert "interrupted" in capsys.readouterr().out
    assert main(["stop", "runs/one"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: run: ")


def test_running_run_is_shown_and_stopped_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedraa", "run", *FLAGS, "--updates", "1000000", "--out", str(out)]
    # A script starts background processes in this way.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        give_up = time.monotonic() + 60
        while not (out / EVENTS).exists() or '"commit"' not in (out / EVENTS).read_text():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert read_status(out).state == "running"
        assert (out / WRITER).read_text().endswith(f" {process.pid}")
        (out / WRITER).write_text(f"elsewhere {process.pid}")
        assert main(["stop", str(out)]) == 2
        assert re.match(rf"fedraa: run: .* {process.pid} .*elsewhere", capsys.readouterr().err)
        (out / WRITER).write_text(f"{os.uname().nodename} {process.pid}")
        assert main(["stop", str(out)]) == 0
        _, stderr_text = process.communicate(timeout=60)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.returncode == 130
    assert "with a checkpoint" in stderr_text
    assert stderr_text.strip().endswith(f": fedraa resume {out}")
    assert read_status(out).state == "interrupted"
    assert not is_written(out / EVENTS)
    assert not (out / WRITER).exists()


def test_stop_of_a_run_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    log = EventLog(tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    with refuses("run", str(os.getpid()), str(tmp_path)):
        interrupt_run(tmp_path, tmp_path / EVENTS)
    log.close()


def test_log_on_a_disk_that_became_read_only_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(path))

    log = EventLog(tmp_path)
    assert is_written(tmp_path / EVENTS)
    monkeypatch.setattr(Path, "unlink", refuse)
    log.close()
    assert not is_written(tmp_path / EVENTS)


def test_lock_of_a_log_waits_for_a_reader_and_refuses_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / EVENTS
    log.touch()
    with log.open() as reader:
        # `fedraa status` holds a shared lock for a moment.
        fcntl.flock(reader, fcntl.LOCK_SH)
        end = threading.Timer(0.3, fcntl.flock, (reader, fcntl.LOCK_UN))
        end.start()
        with lock_log(tmp_path):
            assert is_written(log)
        end.join()
    assert not is_written(log)
    monkeypatch.setattr(run_lock, "LOCK_SECONDS", 0.1)
    with lock_log(tmp_path), refuses("run", str(tmp_path)), lock_log(tmp_path):
        pass


def test_status_of_a_failed_run_has_the_reason_until_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    fields = {"hidden": (8,), "clients": 4, "local_steps": 2, "updates": 3, "engine": "local", "quiet": True}
    with pytest.raises(RunFailed) as failed:
        run(Experiment(**fields, max_update_norm=1e-6, on_bad_client="stop", out=out))
    assert read_status(out).state == f"failed ({failed.value})"
    assert History(out).state == "failed"
    assert main(["status", str(out)]) == 0
    assert "failed" in capsys.readouterr().out
    with pytest.raises(RunFailed):
        resume(out, quiet=True)
    assert read_status(out).state.startswith("failed (")
    (out / FAILURE).unlink()
    assert read_status(out).state == "interrupted"


def test_statuses_of_a_folder_with_an_unreadable_run_have_the_other_runs(sample_runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sample_runs, tmp_path / "runs")
    (folder / "fed-raa-stopped" / FAILURE).mkdir()
    states = {Path(status.run).name: status.state for status in read_statuses(folder)}
    unreadable = states.pop("fed-raa-stopped")
    assert unreadable.startswith("damaged (")
    assert FAILURE in unreadable
    assert states == {"fed-raa-ended": "ended by steps", "scaffold-stopped": "interrupted"}


def test_status_groups_quarantined_clients_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = run(Experiment(hidden=(8,), clients=4, local_steps=2, updates=3, engine="local", out=tmp_path / "run"))
    drop = '{"seq":0,"kind":"drop","t":9.5,"wall":1,"task":1,"client":%d,"error":"%s","action":"quarantined"}\n'
    with (history.directory / EVENTS).open("a") as log:
        log.writelines(drop % line for line in [(3, "no samples"), (0, "loss nan"), (1, "no samples")])
    capsys.readouterr()
    assert main(["status", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "3 clients" in shown
    assert "clients 1, 3: no samples" in shown
    assert "client 0: loss nan" in shown


def test_status_marks_a_run_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"hidden": (8,), "clients": 4, "local_steps": 2, "time": 0.001, "engine": "local", "quiet": True}
    run(Experiment(**fields, out=tmp_path / "run"))
    assert main(["status", str(tmp_path / "run")]) == 0
    assert f"0: {NO_STEP}" in capsys.readouterr().out
    (tmp_path / "run" / SUMMARY).unlink()
    assert read_status(tmp_path / "run").note == ""


def test_name_clients_has_the_first_numbers_with_their_names_and_the_count_of_the_others() -> None:
    assert name_clients([3]) == "client 3"
    assert name_clients([0, 2], ["ada", "1", "2"]) == "clients 0 (ada), 2"
    assert name_clients(range(12)) == "clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
