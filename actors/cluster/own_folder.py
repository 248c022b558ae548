"""A temporary folder that no other user can enter, and that goes with its owner.

Whoever makes one holds a lock in it for life. A process that was killed leaves its folder behind, unlocked: who makes
the next one removes it, and what is left of the processes that were at work in it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actors.cluster.processes import kill_all_of

PREFIX = "fedraa-"
OWNER = "owner"  # the file that is locked as long as the owner lives
# A socket's path may have 107 characters, of which Ray's names below the folder take 80 and the folder's own 16.
LONGEST = 107 - 80 - 16


@contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder, for this user alone, removed at the end; so are those whose owners were killed."""
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= LONGEST else "/tmp"
    sweep(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (folder / f"{OWNER}.new").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{OWNER}.new").rename(folder / OWNER)  # it is never there without being locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_own(folder: Path) -> bool:
    """Whether this was made by `own_folder`."""
    return folder.name.startswith(PREFIX) and (folder / OWNER).exists()


def sweep(parent: Path) -> None:
    """Removes the folders of this user's whose owners are no more."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Raises OSError if it has no owner's file, or the owner lives."""
    with (folder / OWNER).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_all_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
