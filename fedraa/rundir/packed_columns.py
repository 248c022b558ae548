"""Columns of config.json with an entry per client: a list, or packed bytes if there are very many."""

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError

# Entries above which a column is packed. A list of a million entries would be most of the file.
PACKED = 10_000

Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def written(column: Column) -> Any:
    """Return a column for JSON: a list in which None is infinite, or the compressed bytes of the array as text."""
    if len(column) > PACKED:
        raw = zlib.compress(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).tobytes(), 1)
        return {"dtype": str(column.dtype), "packed": base64.b64encode(raw).decode()}
    return [value if np.isfinite(value) else None for value in column.tolist()]


def read(written: Any) -> Any:
    """Return the column as a list, in which None is infinite. Raise InputError if it is damaged."""
    if not isinstance(written, dict):
        return written
    try:
        raw = zlib.decompress(base64.b64decode(written["packed"]))
        column = np.frombuffer(raw, np.dtype(written["dtype"]).newbyteorder("<"))
    except (KeyError, TypeError, ValueError, zlib.error):
        raise InputError("packed", "it is not a packed column, or it is damaged") from None
    return [value if np.isfinite(value) else None for value in column.tolist()]
