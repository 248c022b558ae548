"""Results of studies, from the committed tables in benchmarks/results."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pandas as pd

from benchmarks.studies.recipes.scale import SIZES
from benchmarks.studies.weak import Means, group_accuracies

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = re.compile(r"# (python -m benchmarks run (\w+) --(\w+)[^,]*)")
MINUTES = re.compile(r"([\d.]+) core minutes$")


@dataclass(frozen=True)
class Line:
    """A number of a study's table: a mean over `n` seeds.

    Attributes:
        mean: The mean.
        half_width: Half of the 95 % interval; None if it is unknown.
        n: The number of seeds.
        by_seed: The value of each seed; empty if these values are unknown.
        paper: The paper's number; NaN if there is none.
    """

    mean: float
    half_width: float | None
    n: int
    by_seed: tuple[float, ...]
    paper: float = math.nan


@dataclass(frozen=True)
class Result:
    """The table of one study at one size.

    Attributes:
        study: The study's name.
        size: The study's size.
        command: The command that repeats the runs.
        setting: The data, model, clients and local training.
        lines: The numbers by row, column and metric.
        minutes: The total minutes of all runs on one core, if the table states them.
    """

    study: str
    size: str
    command: str
    setting: str
    lines: Mapping[tuple[str, str, str], Line]
    minutes: float | None = None


def read_result(path: Path) -> Result | None:
    """Read a study's table from a CSV file; return None if the file has other content."""
    text = path.read_text()
    match = COMMAND.match(text)
    if match is None:
        return None
    minutes = MINUTES.search(text.partition("\n")[0])
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    rows = pd.read_csv(StringIO(text), skiprows=len(comments), keep_default_na=False)
    # The tables of the study `race` have other columns.
    if not {"row", "column", "metric", "mean", "ci95", "n"} <= set(rows):
        return None
    return Result(
        study=match[2],
        size=match[3],
        command=match[1].strip(),
        setting="".join(comments[1:2]).removeprefix("# "),
        minutes=float(minutes[1]) if minutes else None,
        lines=dict(_parse_line({str(k): v for k, v in row.items()}) for row in rows.to_dict("records")),
    )


def read_results(folder: Path = RESULTS) -> dict[str, list[Result]]:
    """Return the results in a folder by the study's name. The smallest size of each study comes first."""
    by_study: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.csv")):
        result = read_result(path)
        if result is not None:
            by_study.setdefault(result.study, []).append(result)
    return {study: sorted(results, key=lambda one: SIZES.index(one.size)) for study, results in by_study.items()}


def file_name(study: str, size: str) -> str:
    """Return the file name of a study's table, without suffix. The size is omitted if it is "quick"."""
    return study if size == "quick" else f"{study}-{size}"


def _parse_line(row: Mapping[str, object]) -> tuple[tuple[str, str, str], Line]:
    by_seed = tuple(float(value) for value in str(row.get("by_seed", "")).split())
    half = _parse_number(row["ci95"])
    line = Line(
        _parse_number(row["mean"]),
        None if math.isnan(half) else half,
        int(str(row["n"])),
        by_seed,
        _parse_number(row.get("paper", "")),
    )
    return (str(row["row"]), str(row["column"]), str(row["metric"])), line


def _parse_number(value: object) -> float:
    return float(str(value) or math.nan)


def mean_accuracies(result: Result) -> Means:
    """Return, for each column and metric, the rows and their mean accuracies. Rows with a failed run are omitted."""
    return group_accuracies((*place, line.mean) for place, line in result.lines.items())
