"""The lock of a run directory. The process that writes the run holds this lock until the process ends."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from fedraa.errors import InputError
from fedraa.reading.regular_files import open_regular_file, read_regular_file
from fedraa.rundir.file_names import EVENTS

# Seconds to wait for the lock. The server process of a killed run may still hold it for a moment.
LOCK_SECONDS = 15
# This file names the process that writes the run. `fedraa stop` ends this process.
WRITER = "writer"
# The lock file in a directory of many runs.
LOCK = "lock"


class WriteLock:
    """A lock with which this process may write a run.

    Args:
        directory: The run directory.
        log: The open log, which is locked.
        driver: The user's process, which may differ from the writing process.

    Raises InputError if another process still holds the lock after `LOCK_SECONDS`.
    """

    def __init__(self, directory: Path, log: FileIO, driver: str) -> None:
        _wait_for_lock(directory, log)
        self._file = directory / WRITER
        # The reservation of the directory is a lock on this file. A new file would not have the lock, so that another
        # run could reserve the directory before this run writes its configuration. O_NONBLOCK is for named pipes.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
        with open(descriptor, "wb") as stream:
            stream.write(driver.encode())

    def release(self) -> None:
        """Remove the file that names the process, if the disk allows it. Closing the log ends the lock."""
        with suppress(OSError):
            self._file.unlink()


def this_process() -> str:
    """Return `HOSTNAME PID` of this process."""
    return f"{socket.gethostname()} {os.getpid()}"


def is_written(log: Path) -> bool:
    """Return True if a living process holds the lock on this log.

    Raises OSError if the log cannot be read.
    """
    with open_regular_file(log) as stream:
        return not _try_lock(stream, fcntl.LOCK_SH)


@contextmanager
def lock_log(directory: Path) -> Iterator[None]:
    """Hold the lock of a run's log during the block.

    Raises InputError if another process still holds the lock after `LOCK_SECONDS`.
    """
    with (directory / EVENTS).open("rb+") as log:
        _wait_for_lock(directory, log)
        yield


def interrupt_run(directory: Path, log: Path) -> None:
    """Send SIGTERM to the process of a run. The process then writes a checkpoint and ends.

    Raises InputError if no such process runs on this machine, or if another user owns it.
    """
    if not is_written(log):
        hint = f"see its state: fedraa status {directory}"
        raise InputError("run", f"no process is writing {directory}, and there is nothing to stop", hint=hint)
    machine, _, process = read_regular_file(directory / WRITER).decode(errors="replace").rpartition(" ")
    if not process.isdecimal() or int(process) < 2:
        problem = f"{directory / WRITER} does not name the process that writes the run"
        raise InputError("run", problem, got=process, hint="send SIGTERM to this process yourself")
    if machine != socket.gethostname():
        raise InputError("run", f"{directory} is written by process {process} on {machine}", hint="stop it there")
    try:
        os.kill(int(process), signal.SIGTERM)
    except (ProcessLookupError, OverflowError):
        problem = f"process {process}, which wrote {directory}, has ended, and there is nothing to stop"
        raise InputError("run", problem, hint=f"see its state: fedraa status {directory}") from None
    except PermissionError:
        problem = f"process {process} of another user writes {directory}"
        raise InputError("run", problem, hint="stop it as this user") from None


@contextmanager
def lock_directory(directory: Path, doing: str) -> Iterator[None]:
    """Hold the lock of a directory of many runs during the block.

    Args:
        directory: The directory, which is made if it does not exist.
        doing: The work of this process, such as "running this study". If another process wants the lock, its error
            contains this text.

    Raises:
        InputError: Another process holds the lock, or the directory cannot be written.
    """
    with refuse_unwritable(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        if not _try_lock(lock, fcntl.LOCK_EX):
            raise InputError("out", f"another process is {doing} in {directory}", hint="wait for it, or stop it")
        yield
    finally:
        os.close(lock)


@contextmanager
def refuse_unwritable(directory: Path) -> Iterator[None]:
    """Convert an OSError in the block to an InputError about `out`."""
    try:
        yield
    except OSError as error:
        raise InputError("out", f"{directory} cannot be written: {error.strerror or error}") from None


def _wait_for_lock(directory: Path, log: BinaryIO | FileIO) -> None:
    """Take the lock of a run's log. Raise InputError if another process still holds it after `LOCK_SECONDS`."""
    deadline = time.monotonic() + LOCK_SECONDS
    while not _try_lock(log, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            raise InputError("run", f"another process is writing {directory}", hint="wait for it, or stop it")
        time.sleep(0.1)


def _try_lock(file: int | BinaryIO | FileIO, kind: int) -> bool:
    """Take a lock without waiting. Return False if another process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
