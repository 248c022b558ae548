"""Who writes a run directory: one process, which holds a lock on its log until it ends, however it ends."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from fedraa.errors import InputError
from fedraa.reading import content, opened
from fedraa.rundir.atomic_files import write_text

LOCK_SECONDS = 15
WRITER = "writer"  # the file that says whom to ask to stop
LOCK = "lock"  # in a directory of many runs


class Hold:
    """The right to write a run. `driver` is the process that Ctrl-C stops: this one, unless a server is told another.

    Raises ValueError if another process goes on writing this run for `LOCK_SECONDS`: a killed run's server may live
    a moment longer.
    """

    def __init__(self, directory: Path, log: FileIO, driver: str) -> None:
        give_up = time.monotonic() + LOCK_SECONDS
        while not _locked(log, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise InputError("run", f"another process is writing {directory}", hint="wait for it, or stop it")
            time.sleep(0.1)
        self._file = directory / WRITER
        write_text(self._file, driver)

    def release(self) -> None:
        """The lock itself goes when the log is closed."""
        self._file.unlink(missing_ok=True)


def this_process() -> str:
    """This process among all of all machines."""
    return f"{socket.gethostname()} {os.getpid()}"


def is_written(log: Path) -> bool:
    """Whether a living process holds the lock on this log."""
    with opened(log) as stream:
        return not _locked(stream, fcntl.LOCK_SH)


def interrupt(directory: Path, log: Path) -> None:
    """SIGTERM for the process that runs this run: it ends with a checkpoint. ValueError if there is none here."""
    if not is_written(log):
        raise InputError("run", f"no process is writing {directory}, so that there is nothing to stop")
    machine, _, process = content(directory / WRITER).decode(errors="replace").rpartition(" ")
    if not process.isdecimal() or int(process) < 2:
        raise InputError("run", f"{directory / WRITER} does not name the process that writes the run", got=process)
    if machine != socket.gethostname():
        raise InputError("run", f"{directory} is written by process {process} on {machine}", hint="stop it there")
    try:
        os.kill(int(process), signal.SIGTERM)
    except (ProcessLookupError, OverflowError):
        raise InputError(
            "run", f"process {process}, which wrote {directory}, has ended, so that there is nothing to stop"
        ) from None


@contextmanager
def alone(directory: Path, doing: str) -> Iterator[None]:
    """Meanwhile no other process gets this far in `directory`, where it is `doing` something of many runs.

    Raises ValueError, one sentence, if one is there, or if the directory cannot be written.
    """
    with writable(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        if not _locked(lock, fcntl.LOCK_EX):
            raise InputError("out", f"another process is {doing} in {directory}", hint="wait for it, or stop it")
        yield
    finally:
        os.close(lock)


@contextmanager
def writable(directory: Path) -> Iterator[None]:
    """What the disk refuses within is ValueError, one sentence that names `out`."""
    try:
        yield
    except OSError as error:
        raise InputError("out", f"{directory} cannot be written: {error.strerror or error}") from None


def _locked(file: int | BinaryIO | FileIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
