"""The directory of a tuning: one process's at a time, and of one tuning for ever."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from fedraa.rundir.files import write_text

PLAN, LOCK = "tune.json", "lock"


class Folder:
    """Meanwhile `directory` is ours; what has ended in it is gone on with, if it was planned as `described` says.

    Raises ValueError, one sentence, for a directory that is another's, or in use by another process.
    """

    def __init__(self, directory: Path, described: Mapping[str, object]) -> None:
        self._directory, self._described = directory, described

    def __enter__(self) -> Path:
        directory, text = self._directory, json.dumps(self._described, indent=2) + "\n"
        plan = directory / PLAN
        try:
            if not plan.is_file() and directory.is_dir() and set(os.listdir(directory)) - {LOCK}:
                raise ValueError(f"out: {directory} is in use; choose a directory that is new or empty")
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise ValueError(f"out: another process is tuning in {directory}; wait for it, or stop it") from None
            if not plan.is_file():
                write_text(plan, text)
            elif _plan(plan) != json.loads(text):
                os.close(self._lock)
                raise ValueError(
                    f"out: {directory} holds another tuning, of other methods, values or flags; give the same to go on "
                    "with it, or another directory"
                )
        except OSError as error:
            raise ValueError(f"out: {directory} cannot be written: {error.strerror or error}") from None
        return directory

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._lock)


def _plan(path: Path) -> object:
    """What was planned; None for a file that is damaged."""
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None
