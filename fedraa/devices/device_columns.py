"""Reading and checks of a table of devices."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.devices.fleet import COLUMNS, WATTS
from fedraa.errors import InputError, suggest_closest
from fedraa.messages import Floats
from fedraa.numbers import format_count
from fedraa.reading.table_file import is_empty, read_frame

# The column of a file with the number of equal devices that a row describes.
COUNT = "count"


def read_devices(path: Path, clients: int) -> dict[str, Floats]:
    """Return the columns of a CSV file with one row per device, or per `count` equal devices.

    Raises:
        InputError: The file is malformed, or it does not describe one device per client.
    """
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    frame = read_frame("compute", path)
    check_columns(str(path), list(frame.columns), optional=(COUNT,))
    table = {name: pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64) for name in frame.columns}
    for name, values in table.items():
        raw = [None if is_empty(value) else value for value in frame[name]]
        check_values(str(path), name, values, lambda n: f"line {frame.index[n]}", raw)
    counts = table.pop(COUNT, np.ones(len(frame)))
    devices = int(counts.sum())
    if devices != clients:
        problem = f"it has {format_count(devices, 'device')}"
        hint = f"give --clients {devices}" if devices else ""
        raise InputError(f"compute: {path}", problem, expected=f"{clients}, one for each client", hint=hint)
    return {name: np.repeat(values, counts.astype(np.int64)) for name, values in table.items()}


def check_columns(source: str, columns: list[str], *, optional: tuple[str, ...] = ()) -> None:
    """Raise InputError if a column is unknown, if `compute` is missing, or if watts columns lack `watts_train`.

    Args:
        source: The file or the function, for errors.
        columns: The names of the columns.
        optional: Names that are allowed besides those of a device.
    """
    unknown = sorted(set(columns) - {*COLUMNS, *WATTS, *optional})
    if unknown or "compute" not in columns:
        expected = "compute and optionally " + ", ".join((*optional, *list(COLUMNS)[1:], *WATTS))
        hint = suggest_closest(unknown[0], (*COLUMNS, *WATTS, *optional)) if unknown else ""
        raise InputError(f"compute: {source} columns", got=unknown or columns, expected=expected, hint=hint)
    if set(columns) & set(WATTS) and "watts_train" not in columns:
        raise InputError(f"compute: {source} columns", got=columns, expected="watts_train beside the other watts")


def check_values(source: str, column: str, values: Floats, where: Callable[[int], str], raw: list[object]) -> None:
    """Raise InputError for the first device with a wrong value.

    Args:
        source: The file or the function, for errors.
        column: The name of the column.
        values: The values of the column, NaN for a value that is not a number.
        where: A function from a device's index to its name.
        raw: The values before conversion to numbers, for errors. None stands for an empty field of a file.
    """
    too_low = values <= 0
    expected = "a number above 0"
    if column in ("latency", *WATTS):
        too_low = values < 0
        expected = "a number from 0"
    if column == COUNT:
        too_low = (values < 1) | (values != np.floor(values))
        expected = "a whole number from 1"
    must_be_finite = column in (COUNT, "compute", "latency", *WATTS)
    bad = np.flatnonzero(np.isnan(values) | too_low | (must_be_finite & np.isinf(values)))
    if bad.size:
        field = f"compute: {source} {where(int(bad[0]))} {column}"
        value = raw[bad[0]]
        if value is None:
            raise InputError(field, "it is empty", expected=expected)
        raise InputError(field, got=value, expected=expected)


def parse_float(text: str) -> float:
    """Return the number that a text contains, or NaN if it contains none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def split_clients(shares: Floats, clients: int) -> npt.NDArray[np.int64]:
    """Divide the clients by `shares`, which sum to 1. Return the number of clients for each share, int64 [shares]."""
    ends = np.floor(np.cumsum(shares) * clients + 0.5).astype(np.int64)
    ends[-1] = clients
    return np.diff(ends, prepend=0)
