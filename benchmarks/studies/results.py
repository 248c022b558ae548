"""What studies came to, read from the tables that are committed: no run is needed to judge by them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pandas as pd

from benchmarks.studies.recipes.scale import SIZES

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = re.compile(r"# (python -m benchmarks run (\w+) --(\w+)[^,]*)")


@dataclass(frozen=True)
class Line:
    """One number: its mean over n seeds, half its 95 % interval, and the seeds' own values, if the table has them."""

    mean: float
    half_width: float | None
    n: int
    by_seed: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """The table of one study at one size; `lines` by row, column and metric."""

    study: str
    size: str
    command: str
    setting: str
    lines: Mapping[tuple[str, str, str], Line]


def read(path: Path) -> Result | None:
    """The result in a file; None for a table that no study has written."""
    text = path.read_text()
    found = COMMAND.match(text)
    if found is None:
        return None
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    rows = pd.read_csv(StringIO(text), skiprows=len(comments), keep_default_na=False)
    if not {"row", "column", "metric", "mean", "ci95", "n"} <= set(rows):  # the race's have columns of their own
        return None
    setting = comments[1][2:] if len(comments) > 1 else ""
    return Result(
        found[2],
        found[3],
        found[1].strip(),
        setting,
        dict(_line({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")),
    )


def read_all(folder: Path = RESULTS) -> dict[str, list[Result]]:
    """All results of a folder by study, the small sizes first."""
    found: dict[str, list[Result]] = {}
    for result in filter(None, map(read, sorted(folder.glob("*.csv")))):
        found.setdefault(result.study, []).append(result)
    return {study: sorted(several, key=lambda one: SIZES.index(one.size)) for study, several in found.items()}


def file_name(study: str, size: str) -> str:
    """Of a study's table: quick ones have the plain name."""
    return study if size == "quick" else f"{study}-{size}"


def _line(row: Mapping[str, object]) -> tuple[tuple[str, str, str], Line]:
    by_seed = tuple(float(value) for value in str(row.get("by_seed", "")).split())
    half = _number(row["ci95"])
    line = Line(_number(row["mean"]), None if math.isnan(half) else half, int(str(row["n"])), by_seed)
    return (str(row["row"]), str(row["column"]), str(row["metric"])), line


def _number(value: object) -> float:
    return float(str(value)) if str(value) else math.nan


def rows_by_column(result: Result, metrics: Sequence[str]) -> dict[tuple[str, str], list[tuple[str, float]]]:
    """Rows and means of these metrics by column and metric, less those that failed."""
    told: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for (row, column, metric), line in result.lines.items():
        if metric in metrics and not math.isnan(line.mean):
            told.setdefault((column, metric), []).append((row, line.mean))
    return told
