"""Read summary.json and evals.csv and check their content. An error names the damaged file."""

import io
import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from fedraa.errors import InputError, first_line, short_text
from fedraa.numbers import expected_text
from fedraa.objectives import MetricSpec
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.clients_file import drop_incomplete_line
from fedraa.rundir.config_file import RESTORE
from fedraa.rundir.event_log import TIMES

if TYPE_CHECKING:
    import pandas as pd

Count = Annotated[int, Field(ge=0)]


class Totals(BaseModel):
    """The fields that summary.json always has."""

    reason: str
    steps: Count
    tasks: Count
    time: float
    wall: float
    loss: float | None
    client_worst: float | None
    bytes_down: Count
    bytes_up: Count
    flops: float
    energy: float | None = None
    staleness_mean: float
    staleness_max: Count
    faults: Count
    dropped: Count
    dropped_clients: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    model_sha256: str
    time_to_target: float | None
    metrics: dict[str, float | None] = {}


def read_summary(path: Path, metric_spec: MetricSpec) -> dict[str, Any]:
    """Return the content of a run's summary.json. A metric that is null in the file is NaN in the result.

    Raises InputError if the file is damaged.
    """
    try:
        summary = json.loads(read_regular_file(path))
        Totals.model_validate(summary)
    except OSError as error:
        raise InputError("run", f"{path} cannot be read: {error.strerror or error}", hint=RESTORE) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            raise InputError(
                "run", f"{path} is not a summary of a run; it is not a JSON object", hint=RESTORE
            ) from None
        field = ".".join(map(str, first["loc"]))
        text = f"{field}: got {short_text(first['input'])}; expected {expected_text(first)}"
        if first["type"] == "missing":
            text = f"it lacks {field}"
        raise InputError("run", f"{path} is not a summary of a run; {text}", hint=RESTORE) from None
    except (ValueError, RecursionError) as error:
        raise InputError("run", f"{path} is not JSON: {error}", hint=RESTORE) from None
    for name in (*metric_spec.names, f"best_{metric_spec.main}"):
        if name not in summary:
            raise InputError("run", f"{path} is not a summary of a run; it lacks {name}", hint=RESTORE)
        value = summary[name]
        if not isinstance(value, int | float | None) or isinstance(value, bool):
            text = f"{name}: got {short_text(value)}; expected a number"
            raise InputError("run", f"{path} is not a summary of a run; {text}", hint=RESTORE)
    return with_nan(summary, metric_spec)


def with_nan(totals: Mapping[str, Any], metric_spec: MetricSpec) -> dict[str, Any]:
    """Return the totals of a run. NaN replaces each metric that is None. `metric_spec` has the metrics' names."""
    names = (*metric_spec.names, f"best_{metric_spec.main}", "loss", "client_worst")
    return {**totals, **{name: nan for name in names if totals[name] is None}}


def read_evals(path: Path, metric_spec: MetricSpec) -> "pd.DataFrame":
    """Return the table of evaluations without an incomplete last row.

    Raises InputError if the file is damaged.
    """
    # pandas is slow to import, and workers do without it.
    import pandas as pd

    columns = (*TIMES, *metric_spec.columns)
    try:
        text = drop_incomplete_line(read_regular_file(path).decode()) or ",".join(columns)
        frame = pd.read_csv(io.StringIO(text), index_col=False)
        if tuple(frame.columns[: len(columns)]) != columns:
            raise InputError("columns", got=list(frame.columns), expected=", ".join(columns))
        if not frame.empty:
            frame = frame.apply(pd.to_numeric)
        return frame
    except OSError as error:
        raise InputError("evals", f"{path} cannot be read: {error.strerror or error}", hint=RESTORE) from None
    except ValueError as error:
        problem = f"{path} is not a table of evaluations: {first_line(error)}"
        raise InputError("evals", problem, hint=RESTORE) from None
