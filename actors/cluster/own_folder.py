"""A temporary folder that no other user can enter. It is removed when its owner, a process, ends.

The owner's process locks a file in the folder while it lives. A killed process leaves its folder behind, unlocked. The
next process that makes a folder removes the abandoned one and kills the processes that still use it.
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
# The file that the owner locks while it lives.
OWNER = "owner"
# A socket's path may have 107 characters. Ray's names below the folder take 80 of these characters, and the folder's
# name takes 16.
MAX_PARENT_LENGTH = 107 - 80 - 16


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end.

    Folders of killed owners are removed first.
    """
    parent = tempfile.gettempdir()
    if len(parent) > MAX_PARENT_LENGTH:
        parent = "/tmp"
    remove_abandoned(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (folder / f"{OWNER}.new").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The file gets its final name only after it is locked.
        (folder / f"{OWNER}.new").rename(folder / OWNER)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_own(folder: Path) -> bool:
    """Return True if `own_folder` made this folder."""
    return folder.name.startswith(PREFIX) and (folder / OWNER).exists()


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user that have no living owner."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Remove the folder. Raises OSError if it has no lock file or its owner lives."""
    with (folder / OWNER).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_all_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
