"""The file clients.csv, with a row for each client and evaluation."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedraa.errors import InputError, first_line
from fedraa.objectives import MetricSpec
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.config_file import RESTORE
from fedraa.rundir.file_names import CLIENTS

if TYPE_CHECKING:
    import pandas as pd

TEXT = ("name", "quarantined")


def clients_csv_columns(metric_spec: MetricSpec) -> tuple[str, ...]:
    """Return the columns of clients.csv for a run with these metrics."""
    metrics = list(dict.fromkeys((*metric_spec.names, "loss")))
    if metric_spec.personal:
        metrics.append(metric_spec.personal_main)
    return ("step", "t", "client", "name", "samples", "test_samples", *metrics, "updates", "quarantined")


def format_rows(rows: Sequence[Sequence[object]]) -> bytes:
    """Return rows as CSV. NaN is an empty cell."""
    text = io.StringIO()
    # Only NaN is unequal to itself.
    cells = [["" if value != value else value for value in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue().encode()


def drop_incomplete_line(text: str) -> str:
    """Return the text without an incomplete last line, which a process is still writing."""
    return text[: text.rfind("\n") + 1]


def format_evaluation(step: int, t: float, columns: Mapping[str, Any], order: Sequence[str]) -> bytes:
    """Return the rows of one evaluation as CSV.

    Args:
        step: The number of server updates.
        t: The time on the run's clock.
        columns: The values by column, without step and time.
        order: The columns of the file.
    """
    lists = {name: values.tolist() if hasattr(values, "tolist") else values for name, values in columns.items()}
    count = len(lists["client"])
    lists |= {"step": [step] * count, "t": [t] * count}
    return format_rows([*zip(*(lists[name] for name in order), strict=True)])


def read_clients(directory: Path, metric_spec: MetricSpec) -> "pd.DataFrame":
    """Return clients.csv without an incomplete last row.

    Raises InputError if the file is missing or damaged.
    """
    # pandas is slow to import, and workers do without it.
    import pandas as pd

    path = directory / CLIENTS
    columns = clients_csv_columns(metric_spec)
    if not path.exists():
        raise InputError("clients", f"{directory} has no {CLIENTS}", hint="run with --client-evals final")
    try:
        text = drop_incomplete_line(read_regular_file(path).decode()) or ",".join(columns)
        frame = pd.read_csv(
            io.StringIO(text), index_col=False, dtype=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=[""]
        )
        if tuple(frame.columns) != columns:
            raise InputError("columns", got=list(frame.columns), expected=", ".join(columns))
    except OSError as error:
        raise InputError("clients", f"{path} cannot be read: {error.strerror or error}", hint=RESTORE) from None
    except ValueError as error:
        problem = f"{path} is not a table of clients: {first_line(error)}"
        raise InputError("clients", problem, hint=RESTORE) from None
    return frame.fillna(dict.fromkeys(TEXT, ""))
