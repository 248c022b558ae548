"""Columns of config.json with an entry per client. Columns of very many clients are compressed."""

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError

# Longer lists are compressed. A list of a million entries would take most of config.json.
MAX_LIST_ENTRIES = 10_000

Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def pack_column(column: Column) -> Any:
    """Return a column for JSON: a list with None for infinity, or compressed bytes as text."""
    if len(column) > MAX_LIST_ENTRIES:
        little_endian = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        raw = zlib.compress(little_endian.tobytes(), 1)
        return {"dtype": str(column.dtype), "packed": base64.b64encode(raw).decode()}
    return _with_nulls(column)


def unpack_column(written: Any) -> Any:
    """Return the column as a list with None for infinity.

    Raises InputError if the column is damaged.
    """
    if not isinstance(written, dict):
        return written
    try:
        raw = zlib.decompress(base64.b64decode(written["packed"]))
        column = np.frombuffer(raw, np.dtype(written["dtype"]).newbyteorder("<"))
    except (KeyError, TypeError, ValueError, zlib.error):
        raise InputError("packed", "the value is not a column with an entry per client, or is damaged") from None
    return _with_nulls(column)


def _with_nulls(column: Column) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in column.tolist()]
