"""Runs of the command line in separate processes, which tests interrupt, freeze and kill."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from child_processes import end_with_parent

from fedraa.api import resume
from fedraa.rundir.file_names import EVENTS

PATIENCE = 150.0  # seconds
FIELDS: dict[str, Any] = {"hidden": (8,), "clients": 4, "local_epochs": 1, "checkpoint_every": 50}
FLAGS = ["--hidden", "8", "--clients", "4", "--local-epochs", "1", "--checkpoint-every", "50"]


def until(happened: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Wait for a condition; fail if `process` has ended."""
    give_up = time.monotonic() + PATIENCE
    while not happened():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < give_up
        time.sleep(0.02)


@contextmanager
def started(out: Path, *flags: str, commits: int = 60) -> Iterator[subprocess.Popen[str]]:
    """Start a run with one worker in a separate process group, like a terminal, and wait for commits."""
    workers = [] if "local" in flags else ["--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedraa", "run", *FLAGS, *workers, "--out", str(out), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        until(lambda: (out / EVENTS).exists() and (out / EVENTS).read_text().count('"commit"') >= commits, process)
        yield process
    finally:
        process.kill()
        process.wait()


def resume_to_end(directory: Path) -> None:
    """Resume the run to its end."""
    resume(directory, quiet=True)
