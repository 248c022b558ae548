"""A run directory belongs to one run, also if many runs start at the same moment."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedraa import api
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.file_names import EVENTS
from fedraa.rundir.history import History
from fedraa.rundir.reserved_directory import ReservedDirectory, reserve_directory
from fedraa.rundir.run_lock import WRITER

SMALL: dict[str, Any] = {"engine": "local", "hidden": (8,), "clients": 3, "local_steps": 1, "updates": 3, "quiet": True}
RESERVE_IN_PROCESS = """
import sys, time
from pathlib import Path
from fedraa.rundir.reserved_directory import ReservedDirectory, reserve_directory
given, go = sys.argv[1:]
while not Path(go).exists():
    time.sleep(0.001)
try:
    with reserve_directory(Path(given) if given else None, lambda n: Path(f"runs/x-{n}")) as directory:
        time.sleep(0.3)
        (directory / "config.json").write_text("{}")
        print(directory)
except ValueError as error:
    print(error)
"""


def run_in_threads(count: int, work: Callable[[], object]) -> list[object]:
    """Return the outcome of each of `count` threads that start together."""
    barrier, outcomes = threading.Barrier(count), list[object]()

    def one() -> None:
        barrier.wait()
        try:
            outcomes.append(work())
        except ValueError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("is_made", [False, True])
def test_only_one_of_many_threads_reserves_the_directory(is_made: bool, tmp_path: Path) -> None:
    for trial in range(20):
        directory = tmp_path / str(trial) / "run"
        if is_made:
            directory.mkdir(parents=True)
        # mypy cannot infer the type of the default argument.
        outcomes = run_in_threads(8, lambda directory=directory: ReservedDirectory(directory))  # type: ignore[misc]
        mine = [outcome for outcome in outcomes if isinstance(outcome, ReservedDirectory)]
        assert len(mine) == 1
        rejections = [str(outcome) for outcome in outcomes if outcome is not mine[0]]
        assert len(rejections) == 7
        assert all(error.startswith(f"out: {directory} ") for error in rejections)
        assert os.listdir(directory) == [WRITER]
        mine[0].release()
        assert not directory.exists() or os.listdir(directory) == []
        assert directory.exists() or not is_made


def test_default_names_of_runs_in_threads_never_collide(tmp_path: Path) -> None:
    for trial in range(10):
        folder = tmp_path / str(trial)

        def take(folder: Path = folder) -> Path:
            with reserve_directory(None, lambda number: folder / f"run-{number}") as directory:
                (directory / "config.json").write_text("{}")
                return directory

        assert len(set(run_in_threads(8, take))) == 8
        assert len(os.listdir(folder)) == 8


@pytest.mark.parametrize("out_name", ["", "same"])
def test_processes_never_reserve_the_same_directory(out_name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RESERVE_IN_PROCESS, out_name, str(tmp_path / "go")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    several = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60)[0].strip() for process in several]
    if out_name:
        assert outputs.count("same") == 1
        assert sum(error.startswith("out: same ") for error in outputs) == 5
    else:
        assert sorted(outputs) == [f"runs/x-{number}" for number in range(1, 7)]


def test_run_that_has_opened_its_log_keeps_its_directory(tmp_path: Path) -> None:
    """The log replaced the locked file, so that another run could take the directory and remove the open log."""
    with reserve_directory(tmp_path / "run", Path) as directory:
        log = EventLog(directory)
        with refuses("out"):
            ReservedDirectory(directory)
        assert (directory / EVENTS).exists()
        log.close()


def test_runs_and_comparisons_that_start_together_use_different_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start whole runs in threads."""
    monkeypatch.chdir(tmp_path)
    outcomes = run_in_threads(4, lambda: api.run(Experiment(**SMALL)).directory)
    assert sorted(map(str, outcomes)) == [f"runs/fed-raa-digits-0{tail}" for tail in ("", "-2", "-3", "-4")]
    digests = {str(History(str(directory)).summary["model_sha256"]) for directory in outcomes}
    assert len(digests) == 1
    outcomes = run_in_threads(3, lambda: api.run(Experiment(**SMALL, out=Path("mine"))).directory)
    winner, *others = sorted(map(str, outcomes))
    assert winner == "mine"
    assert [other for other in others if not other.startswith("out: mine ")] == []
    assert "consistent (" in api.replay("mine")
    outcomes = run_in_threads(2, lambda: api.compare(["fed-raa"], experiment=Experiment(**SMALL)))
    assert sorted(path.name for path in Path("runs").glob("compare*")) == ["compare-digits-0", "compare-digits-0-2"]
    assert not list(Path("runs").glob(f"**/{WRITER}"))


def test_failed_start_removes_only_its_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(spec: object, directory: Path, *arguments: object, **more: object) -> None:
        assert (directory / WRITER).exists()
        (directory / "events.jsonl").touch()
        raise InputError("address", "no cluster answers")

    monkeypatch.setattr(api, "_execute_run", fail)
    (tmp_path / "existing").mkdir()
    for out in ("existing", "deep/down/new"):
        with refuses("address"):
            api.run(Experiment(**SMALL, out=tmp_path / out))
    assert [path.name for path in tmp_path.rglob("*")] == ["existing"]


def test_files_of_a_killed_start_do_not_block_a_reservation(tmp_path: Path) -> None:
    (tmp_path / WRITER).write_text("elsewhere 1")
    ReservedDirectory(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_release_removes_the_files_of_a_run_that_has_no_configuration(tmp_path: Path) -> None:
    """On a full disk, a run may fail between its partition and its configuration."""
    claim = ReservedDirectory(tmp_path / "run")
    for name in ("events.jsonl", "evals.csv"):
        (tmp_path / "run" / name).touch()
    for name in ("partition.npz", "failure.txt"):
        (tmp_path / "run" / name).write_text("a")
    claim.release()
    assert os.listdir(tmp_path) == []


def test_error_about_a_folder_of_runs_names_the_commands_that_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    (folder / "fedavg-0").mkdir(parents=True)
    with refuses("out") as caught:
        ReservedDirectory(folder)
    assert "report" not in str(caught.value)
    (folder / "fedavg-0" / "config.json").touch()
    with refuses("out", f"fedraa report '{folder}'", "fedraa resume"):
        ReservedDirectory(folder)


def test_release_keeps_a_run_that_has_begun(tmp_path: Path) -> None:
    claim = ReservedDirectory(tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_text("{}\n")
    claim.release()
    assert os.listdir(tmp_path / "run") == ["events.jsonl"]


def make_unusable_output(kind: str, folder: Path) -> Path:
    path = folder / "out"
    if kind == "a file":
        path.write_text("mine")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link to nothing":
        path.symlink_to(folder / "nothing")
    elif kind == "below a file":
        path.write_text("mine")
        return path / "run"
    elif kind == "an unwritable folder":
        return Path("/proc/run")
    elif kind == "a name too long":
        return folder / ("x" * 300)
    return path


@pytest.mark.parametrize(
    "kind",
    ["a file", "a pipe", "a link to nothing", "below a file", "an unwritable folder", "a name too long"],
)
@pytest.mark.parametrize("command", [["run"], ["compare", "fed-raa", "fedasync"]])
def test_commands_refuse_an_output_that_is_no_directory(
    kind: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_unusable_output(kind, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    flags = ["--engine", "local", "--updates", "2", "--clients", "2", "--hidden", "8", "--out", str(out), "--quiet"]
    assert main([*command, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedraa: out: ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
