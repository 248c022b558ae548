"""Functions that open the files of a user.

They raise OSError for a path that is not a regular file, such as a named pipe, because reading it could block forever.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: Path) -> BinaryIO:
    """Open the file for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is not a file", str(path))
    return os.fdopen(descriptor, "rb")


def content(path: Path) -> bytes:
    """Return the bytes of the file."""
    with opened(path) as stream:
        return stream.read()


def refuse_no_file(path: Path) -> None:
    """Raise OSError if the path is no regular file, before a library opens it and waits forever."""
    opened(path).close()
