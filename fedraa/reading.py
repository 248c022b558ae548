"""Open the files of a user.

A path that is not a regular file, such as a named pipe, raises OSError, because reading it could block for ever.
"""

import os
import stat
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from fedraa.errors import InputError, read_failure


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


def read_csv_frame(field: str, path: Path) -> Any:
    """Return a table with a header as a DataFrame. Raise InputError about `field` if it cannot be read as CSV."""
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    try:
        refuse_irregular_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            # Without `index_col`, pandas takes the first field of rows that are longer than the header as a row name.
            # The other columns are then shifted.
            frame = pd.read_csv(path, index_col=False)
    except pd.errors.ParserWarning:
        raise InputError(field, "its rows have more fields than its header", hint="give every column a name") from None
    except (OSError, ValueError) as error:
        raise InputError(field, f"it cannot be read as CSV: {read_failure(error)}") from error
    if len(frame.columns) == 1 and any(delimiter in str(frame.columns[0]) for delimiter in ";\t"):
        raise InputError(field, f"its header is {frame.columns[0]!r}", expected="columns separated by commas")
    return frame


def refuse_irregular_file(path: Path) -> None:
    """Raise OSError if the path is not a regular file. A library that reads a named pipe could block for ever."""
    open_regular_file(path).close()
