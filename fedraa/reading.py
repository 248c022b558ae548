"""Files that a user names, opened: OSError for what is none, such as a named pipe, which may stay empty for ever."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path) -> BinaryIO:
    """The file, to be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no file", str(path))
    return os.fdopen(descriptor, "rb")


def content(path: Path) -> bytes:
    """All that is in the file."""
    with opened(path) as stream:
        return stream.read()


def refuse_no_file(path: Path) -> None:
    """OSError for what cannot be opened, before a library does so that would wait."""
    opened(path).close()
