"""The columns of a table of devices, read and checked: one row per client."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedraa.devices.fleet import COLUMNS, Floats
from fedraa.reading import refuse_no_file


def read_csv(path: Path, clients: int) -> dict[str, Floats]:
    import pandas as pd  # slow to import, and workers do without

    try:
        refuse_no_file(path)
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"capabilities: {path} cannot be read as CSV: {_first_line(error)}") from error
    check_columns(str(path), list(frame.columns))
    if len(frame) != clients:
        raise ValueError(f"capabilities: {path} has {len(frame)} devices for {clients} clients; give one row each")
    table = {name: pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64) for name in frame.columns}
    for name, values in table.items():
        check_values(str(path), name, values, lambda n: f"row {n + 1}", frame[name].tolist())
    return table


def check_columns(source: str, columns: list[str]) -> None:
    if set(columns) - set(COLUMNS) or "compute" not in columns:
        raise ValueError(
            f"capabilities: {source} has the columns {columns}; it needs compute and may have "
            "downlink, uplink, latency, memory"
        )


def check_values(source: str, column: str, values: Floats, where: Callable[[int], str], said: list[object]) -> None:
    """ValueError names the first device, `where`, whose value is none; `said` is as the user wrote them."""
    low_enough = values < 0 if column == "latency" else values <= 0
    bad = np.flatnonzero(np.isnan(values) | low_enough | ((column in ("compute", "latency")) & np.isinf(values)))
    if bad.size:
        least = "at least 0" if column == "latency" else "over 0"
        raise ValueError(
            f"capabilities: {source} {where(int(bad[0]))} has {column} {said[bad[0]]}; it must be a number {least}"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
