"""Worker processes that fail in unusual ways neither hang a run nor remain after it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import SMALL
from torch import nn

import fedraa as fl
from benchmarks.system.chaos_local import find_worker_processes
from benchmarks.system.processes import list_descendants
from fedraa.callbacks import Event
from fedraa.engine import process_executor, worker_calls
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.process_executor import ProcessExecutor
from fedraa.engine.shared_memory import INLINE_BYTES, pack, unpack
from fedraa.engine.worker_calls import WorkerHandle
from fedraa.errors import WorkersLost

RUN: dict[str, Any] = SMALL | {"method": "fedavg", "rounds": 3}
IDLE = "import time; time.sleep(100)"
# The third argument is the connection. The first four bytes of an answer are its length.
INTERRUPTED_ANSWER = "import os, sys, time; os.write(int(sys.argv[3]), bytes([0, 0, 1, 0, 9])); time.sleep(100)"


@contextmanager
def start_executor(limits: HangDetector | None = None) -> Iterator[ProcessExecutor]:
    spec = build_run(fl.Experiment(**RUN, workers=2))
    with closing(ProcessExecutor(spec, 2, limits)) as executor:
        yield executor


def test_worker_that_stops_within_an_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_calls, "PROGRAM", INTERRUPTED_ANSWER)
    monkeypatch.setattr(worker_calls, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(process_executor, "ANSWER_SECONDS", 1.0)
    with start_executor() as executor, pytest.raises(WorkersLost, match="within 1 s"):
        executor.await_workers(60)


def test_worker_that_never_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_calls, "PROGRAM", IDLE)

    def await_start(executor: ProcessExecutor) -> None:
        while not executor.await_workers(0.1):
            pass

    with start_executor(HangDetector(unseen=0.5)) as executor, pytest.raises(WorkersLost, match="worker hung"):
        await_start(executor)


def test_process_without_an_end_of_its_connection_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_calls, "PROGRAM", "import os, sys, time; os.close(int(sys.argv[3])); time.sleep(100)")
    monkeypatch.setattr(worker_calls, "ANSWER_SECONDS", 1.0)
    with start_executor() as executor, pytest.raises(WorkersLost, match="exit code -9"):
        executor.await_workers(60)


def test_failed_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    start = WorkerHandle.start

    def start_only_first(number: int, *args: Any) -> WorkerHandle:
        if number:
            raise OSError("too many processes")
        return start(number, *args)

    monkeypatch.setattr(WorkerHandle, "start", start_only_first)
    before = list_descendants(os.getpid())
    with pytest.raises(OSError, match="too many"), start_executor():
        pass
    assert list_descendants(os.getpid()) == before


def test_part_of_a_shared_buffer_is_sent_as_this_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_calls, "PROGRAM", IDLE)
    with start_executor() as executor:
        shared = executor.share(np.arange(INLINE_BYTES, dtype=np.float32))
        part = shared.values[: INLINE_BYTES // 2]
        message = executor._write_message(pack([shared.values, part]))
        slot, start, size = message.body
        view = executor._slots.memory.view
        found = unpack(view(slot)[start : start + size], message.pieces, view)
        assert np.array_equal(found[0], shared.values)
        assert np.array_equal(found[1], part)


def test_import_path_that_is_no_text_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert fl.run(**RUN, workers=2, out=tmp_path / "run").summary["steps"] == 3


class Interrupts(fl.LocalAlgorithm):
    """Local training that raises KeyboardInterrupt."""

    def train(self, run: Any) -> None:
        raise KeyboardInterrupt("mine")


def test_worker_that_cannot_continue_reports_the_reason(tmp_path: Path) -> None:
    fedavg = fl.method("fedavg")
    method = replace(fedavg, name="interrupts", local=replace(fedavg.local, algorithm=Interrupts()))
    with pytest.raises((fl.RunFailed, WorkersLost), match="mine"):
        fl.run(**RUN | {"method": method}, workers=2, out=tmp_path / "run")


class Forks(nn.Module):
    """A model that leaves a child process in each worker. The child inherits the worker's connection."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Linear(64, 10)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if "worker_process" in " ".join(sys.orig_argv):
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            (Path(os.environ["CHILDREN"]) / str(child)).touch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))


class KillFirst(fl.Callback):
    """A callback that kills the first worker after the first commit."""

    def __init__(self) -> None:
        self.killed = 0

    def on_commit(self, event: Event) -> None:
        if not self.killed:
            self.killed = find_worker_processes()[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.linux
def test_dead_worker_with_a_living_child_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children = tmp_path / "children"
    children.mkdir()
    monkeypatch.setenv("CHILDREN", str(children))
    fields = RUN | {"hidden": (200,), "rounds": 200}
    try:
        history = fl.run(**fields, model=Forks(), workers=2, callbacks=[KillFirst()], out=tmp_path / "run")
    finally:
        pids = [int(child.name) for child in children.iterdir()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # It raises if a child has already ended.
    assert pids
    assert history.summary["steps"] == 200
    (fault,) = (line["error"] for line in history.lines() if line["kind"] == "fault")
    assert fault.startswith("worker died (exit code -9)")


SCRIPT = """
import os
import sys
import time
import fedraa as fl

class Forks(fl.Callback):
    def on_commit(self, event):
        if not hasattr(self, "child"):
            self.child = os.fork()
            if not self.child:
                time.sleep(30)
                os._exit(0)
            print(self.child, flush=True)

fl.run(method="fedavg", rounds=100_000, clients=4, engine="local", workers=2, quiet=True, callbacks=[Forks()],
       out=sys.argv[1])
"""


@pytest.mark.linux
def test_workers_end_with_a_killed_run_that_leaves_a_child(tmp_path: Path) -> None:
    program = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        workers = [worker for worker in list_descendants(process.pid) if worker != child]
        assert len(workers) == 2
        process.kill()
        process.wait()
        give_up = time.monotonic() + 10
        while any(Path(f"/proc/{worker}/exe").exists() for worker in workers):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)


def test_workers_receive_no_signals_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_calls, "PROGRAM", IDLE)
    with start_executor() as executor:
        groups = {os.getpgid(handle.process.pid) for handle in executor._handles.values()}
        assert len(groups) == 2
        assert os.getpgid(0) not in groups
