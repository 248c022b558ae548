"""A temporary folder that only this user can enter. The process that created it is its owner.

The owner locks a file in the folder while it uses the folder, and then removes the folder. If the owner is killed, the
folder is abandoned. The next call of `own_folder` then removes the folder, and kills processes that still use it.
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
# This file is locked as long as the owner process lives.
OWNER = "owner"
# The path of a Unix socket has at most 107 characters. Ray's paths in the folder need 80, and the folder's name needs
# 16.
MAX_PARENT_LENGTH = 107 - 80 - 16


@contextmanager
def own_folder() -> Iterator[Path]:
    """Create a folder that only this user can enter, and remove it at the end of the block.

    Abandoned folders of killed processes are removed first.
    """
    parent = tempfile.gettempdir()
    if len(parent) > MAX_PARENT_LENGTH:
        parent = "/tmp"
    remove_abandoned(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (folder / f"{OWNER}.new").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The file gets its final name after it is locked. So other processes never see it unlocked.
        (folder / f"{OWNER}.new").rename(folder / OWNER)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_own(folder: Path) -> bool:
    """Return True if `own_folder` has created this folder."""
    return folder.name.startswith(PREFIX) and (folder / OWNER).exists()


def remove_abandoned(parent: Path) -> None:
    """Remove this user's abandoned folders below `parent`."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder if its owner is dead. Raise OSError if the owner lives or the lock file is missing."""
    with (folder / OWNER).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_all_of(folder)
        shutil.rmtree(folder, ignore_errors=True)
