"""Open regular files.

A path that is not a regular file, such as a named pipe, raises OSError, because reading it could block for ever.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is not a file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular_file(path: Path) -> bytes:
    """Return the bytes of a regular file."""
    with open_regular_file(path) as stream:
        return stream.read()


def refuse_irregular_file(path: Path) -> None:
    """Raise OSError if the path is not a regular file. A library that reads a named pipe could block for ever."""
    open_regular_file(path).close()
