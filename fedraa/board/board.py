"""All runs below a folder, watched by a thread of their own."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from fedraa.board.watched_run import WatchedRun
from fedraa.errors import InputError
from fedraa.rundir.file_names import CONFIG, EVENTS

PAUSE = 0.5  # seconds between two looks at every run
PATIENCE = 20  # times as long as the search for runs took is waited before the next


class Board:
    """`runs` by name, which is their path below `folder`; it is replaced, never changed, as runs come and go.

    Only files that end in a line break are understood, each byte once, in small portions of all logs in turn, so that
    whoever looks at the page is never kept waiting. Nothing is written.
    """

    def __init__(self, folder: Path) -> None:
        """ValueError if there is no such folder."""
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise InputError("folder", f"{folder} {what}", hint="give a folder of run directories")
        self.folder = folder
        self.runs: dict[str, WatchedRun] = {}
        self._versions = count(1)
        self.version = 0
        self.searched = False
        """Whether the folder was gone through once."""
        self._next_search = 0.0
        self._stopped = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def read(self) -> tuple[int, int]:
        """Bytes of all logs that were read, and that there are."""
        logs = [run.log for run in self.runs.values() if run.about is not None]
        return sum(log.offset for log in logs), sum(log.size for log in logs)

    def look(self) -> None:
        """Look for runs, and at each."""
        if monotonic() >= self._next_search:
            self._search()
        for run in list(self.runs.values()):
            run.look()

    def read_on(self) -> bool:
        """A portion of every log; whether there is more."""
        runs = list(self.runs.values())
        for run in runs:
            run.read()
        return any(run.more for run in runs)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self.look()
            looked = monotonic()
            while self.read_on() and monotonic() < looked + PAUSE and not self._stopped.is_set():
                pass
            self._stopped.wait(max(0.0, looked + PAUSE - monotonic()))

    def _search(self) -> None:
        began = monotonic()
        found = {_name(path, self.folder): path for path in runs_below(self.folder)}
        if found.keys() != self.runs.keys():
            self.runs = {
                name: self.runs.get(name) or WatchedRun(path, name, self._next) for name, path in found.items()
            }
            self._next()
        self.searched = True
        self._next_search = monotonic() + PATIENCE * (monotonic() - began)

    def _next(self) -> int:
        self.version = next(self._versions)
        return self.version


def runs_below(folder: Path) -> Iterator[Path]:
    """The directories that are a run's, or look like one, by name. Links are not followed: they may go in a circle."""
    for path, folders, names in os.walk(folder):
        if CONFIG in names or EVENTS in names:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _name(path: Path, folder: Path) -> str:
    below = path.relative_to(folder)
    return folder.resolve().name if below == Path() else below.as_posix()
