"""Processes that a benchmark starts end with the benchmark, and so do their child processes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import refuses

from benchmarks.system import peers
from benchmarks.system.peer_programs.peer_work import Work
from benchmarks.system.peers import System, run_program
from benchmarks.system.processes import call_in_child, list_descendants, process_title, start_tree
from fedraa.errors import RunFailed

# A program that starts a process, prints its id, and waits for it.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""


def await_end(process: int) -> None:
    give_up = time.monotonic() + 10.0
    while process_title(process):
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_an_interruption_ends_a_process_and_its_children() -> None:
    child = 0

    def interrupted() -> None:
        nonlocal child
        with start_tree([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
            child = int(process.stdout.readline())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    await_end(child)


def test_a_program_that_takes_too_long_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    monkeypatch.setitem(peers.SYSTEMS, "slow", System((str(program),)))
    monkeypatch.setattr(peers, "LONGEST_S", 1.0)
    work = Work(str(tmp_path), clients=1, cohort=1, samples=1, batch=1, rounds=1, hidden=(), lr=0.1, epochs=1)
    with refuses("slow", error=RunFailed):
        run_program("slow", Path(sys.executable), work)
    await_end(int((tmp_path / "log").read_text()))


def test_function_in_a_child_has_its_arguments_and_its_result_comes_back() -> None:
    assert call_in_child(list_descendants, 2**22) == []
