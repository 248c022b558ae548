"""Reserve a run directory before the first write, so that no other run can use it."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from fedraa.errors import InputError
from fedraa.rundir.file_names import CLIENTS, CONFIG, EVALS, EVENTS, FAILURE, PARTITION
from fedraa.rundir.run_lock import WRITER, refuse_unwritable, this_process

# A run creates these empty files before its first event.
STARTED = (EVENTS, EVALS, CLIENTS)
# The files that a run may have before its configuration.
EARLY = (*STARTED, PARTITION, FAILURE)
# `reserve_directory` tries MAX_ATTEMPTS times to make a directory, and then raises the error. One failure is not
# enough: another process may have made and removed the same directory at this moment.
MAX_ATTEMPTS = 3
# Characters that are replaced in the names of run directories.
NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


def run_name(*parts: object) -> str:
    """Return a name for a run directory, joined from these parts."""
    return "-".join(NOT_IN_NAMES.sub("-", str(part)).strip("-.") for part in parts)


class ReservedDirectory:
    """A directory in which only this process can start a run.

    The reservation is a lock on the file that names the process of the run. It ends with the process. If two processes
    try to reserve a directory, one of them fails and changes nothing. The files of a run that was killed before it
    began are removed.

    Args:
        directory: The directory.
        may_be_used: False if a directory with other files is refused.

    Raises InputError if the directory is in use or cannot be made.
    """

    def __init__(self, directory: Path, *, may_be_used: bool = False) -> None:
        self.directory = directory
        self._may_be_used = may_be_used
        if not may_be_used:
            refuse_used(directory)
        self._made: list[Path] = []
        try:
            with refuse_unwritable(directory):
                self._make_directories()
                self._lock = self._take_lock()
        except ValueError:
            self._remove_made_directories()
            raise
        if self._lock is None:
            self._remove_made_directories()
            raise in_use_error(directory)

    def release(self) -> None:
        """End the reservation, and remove its files if the run has not begun."""
        assert self._lock is not None
        path = self.directory / WRITER
        is_own = not path.exists() or _is_at(self._lock, path)
        if is_own and not _has_begun(self.directory):
            self._remove_early_files()
        with suppress(OSError):
            if _is_at(self._lock, path):
                path.unlink()
        os.close(self._lock)
        self._remove_made_directories()

    def _remove_early_files(self) -> None:
        for name in EARLY:
            (self.directory / name).unlink(missing_ok=True)

    def _make_directories(self) -> None:
        missing = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        for path in reversed(missing):
            # If another process has just made the directory, this object must not remove it later.
            with suppress(FileExistsError):
                path.mkdir()
                self._made.insert(0, path)

    def _remove_made_directories(self) -> None:
        for path in self._made:
            with suppress(OSError):
                path.rmdir()

    def _take_lock(self) -> int | None:
        """Return the lock; None if another process holds it or the directory has other files."""
        path = self.directory / WRITER
        is_new = True
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            is_new = False
            # If the file is a named pipe, opening it without O_NONBLOCK would wait forever.
            lock = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_new = is_new and _is_at(lock, path)
            is_free = self._may_be_used or not _has_begun(self.directory)
            if _is_at(lock, path) and is_free:
                if not self._may_be_used:
                    self._remove_early_files()
                os.ftruncate(lock, 0)
                os.write(lock, this_process().encode())
                return lock
        except BlockingIOError:
            is_new = False
        except OSError:
            os.close(lock)
            if is_new:
                path.unlink(missing_ok=True)
            raise
        if is_new:
            path.unlink()
        os.close(lock)
        return None


@contextmanager
def reserve_directory(
    directory: Path | None, names: Callable[[int], Path], *, may_be_used: bool = False
) -> Iterator[Path]:
    """Reserve a directory during the block. None means the first free one of `names(1)`, `names(2)`, ...

    If `may_be_used` is True, the directory may have files. Raises InputError if the directory is in use or cannot be
    made.
    """
    if directory is None:
        reserved = _reserve_first_free(names)
    else:
        reserved = ReservedDirectory(directory, may_be_used=may_be_used)
    try:
        yield reserved.directory
    finally:
        reserved.release()


def refuse_used(directory: Path) -> None:
    """Raise InputError for a directory in which a run cannot be started."""
    try:
        is_used = os.path.lexists(directory)
        if directory.is_dir():
            is_used = _has_begun(directory)
    except OSError as error:
        raise InputError("out", f"{directory} cannot be read: {error.strerror or error}") from None
    if is_used:
        raise in_use_error(directory)


def in_use_error(directory: Path) -> InputError:
    """Return the error about a directory that is not empty or that another run uses."""
    hint = "choose a directory that is new or empty"
    with suppress(OSError):
        if any(directory.glob(f"*/{CONFIG}")):
            hint += (
                f"; `fedraa report {quote(str(directory))}` shows its runs, and `fedraa resume` continues one of them"
            )
    return InputError("out", f"{directory} is not an empty directory", hint=hint)


def _reserve_first_free(names: Callable[[int], Path]) -> ReservedDirectory:
    number = 1
    failures = 0
    while True:
        directory = names(number)
        try:
            if not os.path.lexists(directory):
                return ReservedDirectory(directory)
        except ValueError:
            # The directory cannot be made, or another process has just made and removed it.
            if not os.path.lexists(directory):
                failures += 1
                if failures == MAX_ATTEMPTS:
                    raise
                continue
        number += 1


def _has_begun(directory: Path) -> bool:
    """Return True if the directory has other files than those that a run writes before its configuration."""
    names = set(os.listdir(directory))
    return not names <= {*EARLY, WRITER} or any(map(_has_content, (directory / name for name in STARTED)))


def _has_content(path: Path) -> bool:
    """Return True if the file exists and is not empty."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the open file still has the name `path`."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
