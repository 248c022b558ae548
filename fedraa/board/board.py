"""The board: all runs below a folder, and the thread that reads their files."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from fedraa.board.watched_run import WatchedRun
from fedraa.errors import InputError
from fedraa.rundir.file_names import CONFIG, EVENTS

CHECK_INTERVAL_S = 0.5
# The pause after a search for run directories, divided by the duration of this search.
SEARCH_PAUSE_FACTOR = 20


class Board:
    """The runs below a folder, and the thread that reads the runs' files.

    The thread reads a small part of each log in turn, so that no request waits long. The board writes no file.

    Attributes:
        runs: The runs by their paths below `folder`. The thread replaces the whole mapping when runs appear or
            disappear.
        searched: True after the first search of the folder.
        version: A number that grows whenever any of the runs changes.
    """

    def __init__(self, folder: Path) -> None:
        """Raises InputError if `folder` is not a folder."""
        if not folder.is_dir():
            raise InputError("folder", f"{folder} is not a folder", hint="give a folder of run directories")
        self.folder = folder
        self.runs: dict[str, WatchedRun] = {}
        self._versions = count(1)
        self.version = 0
        self.searched = False
        self._next_search = 0.0
        self._stopped = Event()
        self._thread = Thread(target=self._watch_runs, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def log_bytes(self) -> tuple[int, int]:
        """The bytes that the board has read from all logs, and the total size of the logs."""
        logs = [run.log for run in self.runs.values() if run.about is not None]
        return sum(log.offset for log in logs), sum(log.size for log in logs)

    def read_files(self) -> None:
        """Search for new runs if a search is due. Then read the changes in each run's files, except its log."""
        if monotonic() >= self._next_search:
            self._search_runs()
        for run in list(self.runs.values()):
            run.read_files()

    def read_logs(self) -> bool:
        """Read the next portion of every log. Return True if some log has more to read."""
        runs = list(self.runs.values())
        for run in runs:
            run.read_log()
        return any(run.has_more for run in runs)

    def _watch_runs(self) -> None:
        while not self._stopped.is_set():
            self.read_files()
            next_check = monotonic() + CHECK_INTERVAL_S
            while self.read_logs() and monotonic() < next_check and not self._stopped.is_set():
                pass
            self._stopped.wait(max(0.0, next_check - monotonic()))

    def _search_runs(self) -> None:
        started = monotonic()
        paths = {_run_name(path, self.folder): path for path in find_run_directories(self.folder)}
        if paths.keys() != self.runs.keys():
            self.runs = {
                name: self.runs.get(name) or WatchedRun(path, name, self._advance_version)
                for name, path in paths.items()
            }
            self._advance_version()
        self.searched = True
        self._next_search = monotonic() + SEARCH_PAUSE_FACTOR * (monotonic() - started)

    def _advance_version(self) -> int:
        self.version = next(self._versions)
        return self.version


def find_run_directories(folder: Path) -> Iterator[Path]:
    """Yield the run directories below a folder, in the order of their names.

    Symbolic links may form a cycle, so they are not followed.
    """
    for path, folders, names in os.walk(folder):
        if CONFIG in names or EVENTS in names:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _run_name(path: Path, folder: Path) -> str:
    """Return the path of a run below the folder. If the folder itself is the run directory, return its name."""
    if path == folder:
        return folder.resolve().name
    return path.relative_to(folder).as_posix()
