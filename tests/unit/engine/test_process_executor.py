"""A run with worker processes on this machine equals the run in one process, also if workers die."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from threading import Event as Stop
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from equal_runs import SMALL, same_run
from needed_models import needed_model
from torch import nn

import fedraa as fl
from benchmarks.system.chaos_kills import comparable_log
from benchmarks.system.chaos_local import find_worker_processes
from benchmarks.system.processes import list_descendants
from fedraa.callbacks import Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.composition.registry import list_methods
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.process_executor import ProcessExecutor
from fedraa.engine.session import RunSession
from fedraa.errors import InputError, RunFailed, WorkersLost

# A start of a worker takes up to this many seconds on a busy machine.
HUNG_AFTER_S = 8.0
PROCESSES: dict[str, Any] = {"engine": "local", "workers": 2}
# Full models, fragments, masks and slices, buffers in both directions, personal models, and stacks.
CASES: tuple[dict[str, Any], ...] = (
    {"method": "fed-raa", "updates": 24, "hidden": (64,)},
    {"method": "fed-quilt", "updates": 24, "hidden": (64,)},
    {"method": "fedavg", "rounds": 3, "hidden": (64,), "vmap_batch": 3},
    {"method": "fed-raa", "updates": 60, "hidden": (64,), "vmap_batch": 4, "clients": 12, "local_steps": None},
    {"method": "scaffold", "rounds": 2, "hidden": (64,)},
    {"method": "fedasync+ditto", "updates": 12, "hidden": (64,)},
    {"method": "prunefl", "rounds": 12},
)


def compare_with_one_process(folder: Path, **fields: Any) -> fl.History:
    fields = SMALL | fields
    alone = fl.run(**fields, out=folder / "alone")
    together = fl.run(**fields | PROCESSES, out=folder / "together")
    same_run(together.directory, alone.directory)
    return together


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: str(fields["method"]))
def test_worker_processes_give_the_same_run(fields: Mapping[str, Any], tmp_path: Path) -> None:
    compare_with_one_process(tmp_path, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("method", list_methods())
def test_every_method_gives_the_same_run(method: str, tmp_path: Path) -> None:
    budget = {"updates": 16} if fl.method(method).asynchronous else {"rounds": 2}
    compare_with_one_process(tmp_path, method=method, **budget, **needed_model(method))


class KillWorker(fl.Callback):
    """A callback that sends a signal to a worker process after some commits."""

    def __init__(self, commits: int, number: int) -> None:
        self._left = commits
        self._signal = number

    def on_commit(self, event: Event) -> None:
        self._left -= 1
        if not self._left:
            os.kill(find_worker_processes()[-1], self._signal)


class FreezeBusyWorker(fl.Callback):
    """A callback that stops a worker process with a task, after the first commit at which there is one."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self._executor = executor
        self.frozen = False

    def on_commit(self, event: Event) -> None:
        busy = [handle for handle in self._executor._handles.values() if handle.is_ready and handle.calls]
        if busy and not self.frozen:
            os.kill(busy[0].process.pid, signal.SIGSTOP)
            self.frozen = True


def same_without_faults(history: fl.History, undisturbed: fl.History) -> None:
    """Assert equal events, apart from faults and real times, and the same final bits."""
    assert comparable_log(history.lines()) == comparable_log(undisturbed.lines())
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


@pytest.mark.linux
def test_killed_worker_is_replaced_and_the_run_is_the_same(tmp_path: Path) -> None:
    fields = SMALL | {"method": "fedavg", "rounds": 30}
    alone = fl.run(**fields, out=tmp_path / "alone")
    killed = fl.run(**fields | PROCESSES, callbacks=[KillWorker(50, signal.SIGKILL)], out=tmp_path / "killed")
    same_without_faults(killed, alone)
    assert next(line["error"] for line in killed.lines() if line["kind"] == "fault").startswith("worker died")
    assert "consistent" in fl.replay(killed.directory)


@pytest.mark.linux
def test_frozen_worker_is_replaced_and_the_run_is_the_same(tmp_path: Path) -> None:
    fields = SMALL | {"method": "fedavg", "rounds": 30}
    alone = fl.run(**fields, out=tmp_path / "alone")
    directory = tmp_path / "frozen"
    directory.mkdir()
    spec = build_run(fl.Experiment(**fields | PROCESSES, out=directory))
    with closing(ProcessExecutor(spec, 2, HangDetector(factor=0, min_seconds=HUNG_AFTER_S))) as executor:
        callback = FreezeBusyWorker(executor)
        RunSession(spec, directory, executor, Stop(), CallbackList([callback])).execute()
    assert callback.frozen
    frozen = fl.History(directory)
    same_without_faults(frozen, alone)
    assert any("worker hung" in line.get("error", "") for line in frozen.lines())


class Deadly(nn.Module):
    """A model that ends its process in training if a sample has a large value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x > 10).any()):
            os._exit(7)
        return self.layers(x)


def poisoned_data() -> fl.Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    x[3] = 1e3
    return fl.Dataset("poisoned", x, y, x[:20].clip(-3, 3), y[:20], classes=2)


def test_task_that_always_kills_its_worker_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises((RunFailed, WorkersLost), match=r"worker died \(exit code 7\)"):
        fl.run(
            method="fedavg",
            rounds=3,
            clients=4,
            model=Deadly(),
            dataset=poisoned_data(),
            quiet=True,
            **PROCESSES,
            out=tmp_path / "run",
        )


class Unhappy(fl.Callback):
    """A callback that raises an exception after the first commit."""

    def on_commit(self, event: Event) -> None:
        raise KeyError("no")


def test_no_process_remains_after_the_run_or_an_error(tmp_path: Path) -> None:
    before = list_descendants(os.getpid())
    with pytest.raises(KeyError):
        fl.run(**SMALL | PROCESSES, method="fed-raa", updates=20, callbacks=[Unhappy()], out=tmp_path / "run")
    assert list_descendants(os.getpid()) == before
    fl.resume(tmp_path / "run", workers=3)
    whole = fl.run(**SMALL, method="fed-raa", updates=20, out=tmp_path / "whole")
    same_run(tmp_path / "run", whole.directory)
    assert list_descendants(os.getpid()) == before


SCRIPT = """
import sys
import fedraa as fl
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x):
        return self.layers(x)

def hits(outputs, targets):
    return (outputs.argmax(1) == targets).float()

fl.run(method="fedavg", model=Net(), rounds=int(sys.argv[1]), clients=4, engine="local", workers=2, quiet=True,
       metrics=[hits], out=sys.argv[2])
"""


def start_script(folder: Path, rounds: int) -> subprocess.Popen[bytes]:
    """Start a script that has its own model and no `if __name__ == "__main__"`, and train it for some rounds."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    program = [sys.executable, str(script), str(rounds), str(folder / "run")]
    return subprocess.Popen(program, cwd=folder, start_new_session=True)


def await_round(process: subprocess.Popen[bytes], folder: Path) -> None:
    events = folder / "run" / "events.jsonl"
    give_up = time.monotonic() + 60
    while not events.exists() or '"round"' not in events.read_text():
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.05)


def await_end(processes: list[int]) -> None:
    give_up = time.monotonic() + 20
    while any(Path(f"/proc/{process}/fd").exists() and os.listdir(f"/proc/{process}/fd") for process in processes):
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.linux
def test_script_with_its_own_model_and_metric_trains_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    process = start_script(tmp_path, rounds=100_000)
    await_round(process, tmp_path)
    workers = list_descendants(process.pid)
    assert len(workers) == 2
    # A terminal sends Ctrl-C to all processes.
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 1
    await_end(workers)
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.linux
def test_workers_end_with_a_killed_run(tmp_path: Path) -> None:
    process = start_script(tmp_path, rounds=100_000)
    await_round(process, tmp_path)
    workers = list_descendants(process.pid)
    process.kill()
    process.wait()
    await_end(workers)


class Locked:
    """A metric that cannot be pickled."""

    __name__ = "locked"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == targets).float()


def test_component_that_cannot_be_sent_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^metrics: .* cannot be sent"):
        fl.run(**SMALL | PROCESSES, method="fedavg", rounds=1, metrics=[Locked()], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Choosy(nn.Module):
    """A model that fails in every process except the first."""

    first: ClassVar[int] = os.getpid()

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Linear(64, 10)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if "worker_process" in " ".join(sys.orig_argv):
            raise RuntimeError("not here")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))


def test_workers_that_cannot_start_end_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(WorkersLost, match="RuntimeError: not here"):
        fl.run(method="fedavg", rounds=1, model=Choosy(), **PROCESSES, quiet=True, out=tmp_path / "run")


def failing_metric(predictions: Any, targets: Any) -> float:
    raise ZeroDivisionError("half of nothing")


def test_failing_metric_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises((InputError, RunFailed), match="half of nothing"):
        fl.run(**SMALL | PROCESSES, method="fedavg", rounds=1, metrics=[failing_metric], out=tmp_path / "run")


class LeavesInEvaluations(nn.Linear):
    """A model that exits the process if it evaluates many samples. The checks before a run have fewer."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training and len(input) > 100:
            sys.exit(0)
        return super().forward(input.flatten(1))


@pytest.mark.parametrize("workers", [1, 2])
def test_model_that_exits_the_process_in_an_evaluation_is_one_sentence(workers: int, tmp_path: Path) -> None:
    fields = SMALL | PROCESSES | {"workers": workers}
    del fields["hidden"]
    with pytest.raises((InputError, RunFailed), match=r"sys\.exit|SystemExit: 0"):
        fl.run(**fields, method="fedavg", rounds=1, model=LeavesInEvaluations(64, 10), out=tmp_path / "run")


def test_options_of_ray_are_refused_but_workers_are_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="placement"):
        fl.Experiment(engine="local", workers=2, placement="spread")
    assert fl.Experiment(engine="local", workers=2).workers == 2
