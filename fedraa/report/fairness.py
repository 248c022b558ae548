"""Fairness between clients: Jain's index and percentiles of a metric over clients, from clients.csv."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedraa.messages import Floats
from fedraa.objectives.metric_spec import metric_heading, metric_title
from fedraa.report.runs import Group, Run
from fedraa.report.tables import NONE, Cell, Table
from fedraa.report.theme import new_figure

PERCENTILES = (5, 25, 50, 75, 95)
DISTRIBUTION = (
    "Cumulative distribution of the clients' {metric} on their test samples, at the last evaluation of clients.csv. "
    "The dashed line is the median."
)
NOTE = (
    "{metric} of the full model on each client's own test samples, at the last evaluation of clients.csv. Jain's index "
    "(Σx)² / (n Σx²) is 1 if all clients have the same value, and 1/n if only one has a value over 0."
)


def jain_index(values: Floats) -> float | None:
    """Return Jain's index (sum x)^2 / (n sum x^2) of values [n]; None if all are 0.

    Source: Jain, Chiu and Hawe 1984.
    """
    squares = float(np.square(values).sum())
    if squares == 0:
        return None
    return float(values.sum()) ** 2 / (len(values) * squares)


def last_results(run: Run) -> pd.DataFrame:
    """Return the rows of the last evaluation in clients.csv; an empty table if the file does not exist."""
    if not run.history.has_clients:
        return pd.DataFrame()
    rows = run.history.clients
    if rows.empty:
        return rows
    last = rows[rows["step"] == rows["step"].iloc[-1]]
    finite = np.isfinite(last[run.metric_spec.main].to_numpy(np.float64))
    return pd.DataFrame(last[finite]).reset_index(drop=True)


def fairness_tables(groups: Sequence[Group]) -> list[Table]:
    """Return a table with a row for each run that has clients.csv; an empty list if no run has it."""
    main = groups[0].first.metric_spec.main
    columns = (
        *("method", "seed", "step", "clients", "Jain's index"),
        *(f"{percent} %" for percent in PERCENTILES),
        *("worst client", "worst", "best client", "best"),
    )
    rows = [*chain.from_iterable(map(_run_rows, groups))]
    if not rows:
        return []
    note = NOTE.format(metric=metric_title(main))
    frame = pd.DataFrame([[cell.value for cell in row] for row in rows], columns=list(columns))
    return [Table("fairness", "Fairness between clients", note, columns, tuple(rows), frame)]


def _run_rows(group: Group) -> list[tuple[Cell, ...]]:
    metric_spec = group.first.metric_spec
    rows = []
    for run in group.runs:
        results = last_results(run)
        if results.empty:
            continue
        values = results[metric_spec.main].to_numpy(np.float64)
        best_last = np.argsort(values, kind="stable")
        if metric_spec.better(metric_spec.main) == "min":
            best_last = best_last[::-1]
        worst, best = best_last[0], best_last[-1]
        line: list[tuple[str | float | None, str]] = [
            (group.label, ""),
            (run.seed, "d"),
            (int(results["step"].iloc[0]), "d"),
            (len(values), "d"),
            (jain_index(values), ".4f"),
            *((float(value), ".4f") for value in np.percentile(values, PERCENTILES)),
            (_client_name(results, worst), ""),
            (float(values[worst]), ".4f"),
            (_client_name(results, best), ""),
            (float(values[best]), ".4f"),
        ]
        rows.append(tuple(Cell(NONE if value is None else format(value, form), value) for value, form in line))
    return rows


def _client_name(results: pd.DataFrame, row: int) -> str:
    return str(results["name"].iloc[row]) or str(results["client"].iloc[row])


def draw_distribution(run: Run) -> Figure:
    """Return a plot of the cumulative distribution of the metric over clients."""
    figure, axes = new_figure(2.8)
    values = np.sort(last_results(run)[run.metric_spec.main].to_numpy(np.float64))
    axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color="C0")
    axes.axvline(float(np.median(values)), color="C1", linestyle="--")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(f"{metric_heading(run.metric_spec.main)} of a client")
    axes.set_ylabel("clients")
    return figure
