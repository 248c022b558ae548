"""The picture of a study. The upper part has accuracy curves, and the lower part our numbers and the paper's numbers.

There is a panel of curves for each column of the study's table. A row has the same colour in all panels.
"""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from benchmarks.studies.interval import bounded_interval
from benchmarks.studies.metrics import Metric, read_evaluations
from benchmarks.studies.setting import describe_setting
from benchmarks.studies.study import Finished, Study
from benchmarks.studies.tables import Entry, at_edge, best_of, format_caption
from fedraa.report.curves import PALETTE, STYLES
from fedraa.report.statistics import is_significant
from fedraa.rundir.history import History

ALONG = {"step": "server steps", "t": "time on the run's clock", "bytes": "bytes sent"}
MAX_PANELS = 4
POINTS = 200
# At most NAMED rows have coloured curves. The other curves are grey.
NAMED = 10
TICKS = 5
CAPTION_LETTERS_PER_INCH = 16
GREY = "0.75"
OTHERS = "the others"
# There must be at least `NAMED` colours.
COLOURS = (*PALETTE, "#882255", "#999933", "#332288")
# A curve begins with low accuracies. The range of the vertical axis ignores this first fraction of each curve.
AXIS_FROM = 0.25
Looks = dict[str, tuple[str, str]]
"""Colour and line style of the named rows."""


def draw_study(study: Study, runs: Sequence[Finished], numbers: Sequence[Entry], path: Path) -> None:
    """Draw a study's accuracy curves and numbers into a PNG file. Hollow marks are the paper's numbers.

    Args:
        study: The study.
        runs: All runs of the study.
        numbers: The cells of the study's table.
        path: The PNG file.
    """
    columns, metrics = study.columns[:MAX_PANELS], study.metrics[:MAX_PANELS]
    width = max(7.5, 3.4 * max(len(columns), len(metrics)))
    heights = [0.2 * max(sum(entry.metric == metric for entry in numbers) for metric in metrics) + 1.2]
    if study.along:
        heights.insert(0, 3.2)
    figure = Figure(figsize=(width, sum(heights) + 0.2), layout="constrained")
    *above, below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).ravel()
    looks = _choose_styles(study, numbers)
    if study.along:
        _draw_panels(above[0], study, columns, runs, looks)
    for axes, metric in zip(below.subplots(1, len(metrics), squeeze=False, sharey=True)[0], metrics, strict=True):
        _draw_numbers(axes, study, [entry for entry in numbers if entry.metric == metric], metric, looks)
    letters = CAPTION_LETTERS_PER_INCH * figure.get_figwidth()
    figure.suptitle(
        f"{study.title}\n{fill(describe_setting(study), int(letters * 0.75))}", x=0.01, ha="left", fontsize=9
    )
    figure.supxlabel(fill(_picture_caption(study, numbers), int(letters)), x=0.01, ha="left", fontsize=7, color="0.35")
    figure.savefig(path, dpi=130)


def _choose_styles(study: Study, numbers: Sequence[Entry]) -> Looks:
    """Return the colour and line style of the rows that the legend names.

    If the table has more than `NAMED` rows, the legend names the reference row and the best rows. The best rows have
    the best values of the first metric in the first column.
    """
    named = study.rows
    if len(named) > NAMED:
        metric = study.metrics[0]
        means = {entry.row: entry.mean for entry in reversed(numbers) if entry.metric == metric and entry.values}
        order = sorted(means, key=means.__getitem__, reverse=metric.better == "more")
        best = {study.reference, *[row for row in order if row != study.reference][: NAMED - 1]}
        named = [row for row in order if row in best]
    return dict(zip(named, zip(COLOURS, cycle(STYLES)), strict=False))


def _draw_panels(part: SubFigure, study: Study, columns: Sequence[str], runs: Sequence[Finished], looks: Looks) -> None:
    assert study.along is not None
    panels = part.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    ranges = []
    lines: dict[str, Any] = {}
    for axes, column in zip(panels, columns, strict=True):
        ranges += _draw_curves(
            axes, [finished for finished in runs if finished.cell.column == column], looks, study.along
        )
        axes.set_title(column, loc="left", fontsize=9)
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    _fit_vertical_axis(panels[0], ranges)
    panels[0].set_ylabel("test accuracy", fontsize=8)
    names = [row for row in looks if row in lines]
    if len(looks) < len(study.rows):
        (lines[OTHERS],) = panels[0].plot([], [], color=GREY, linewidth=0.8)
        names.append(OTHERS)
    part.legend([lines[name] for name in names], names, loc="outside right upper", fontsize=8, frameon=False)


def _fit_vertical_axis(axes: Axes, ranges: Sequence[tuple[float, float]]) -> None:
    if ranges:
        low = min(low for low, _ in ranges)
        high = max(high for _, high in ranges)
        margin = max(0.005, 0.05 * (high - low))
        axes.set_ylim(max(0.0, low - margin), min(1.0, high + margin))


def _draw_curves(axes: Axes, runs: Sequence[Finished], looks: Looks, along: str) -> list[tuple[float, float]]:
    """Draw each row's mean accuracy and its range over the seeds, up to the end of the row's shortest run.

    Returns the minimum and the maximum of each mean curve. The first part of a curve,
    the fraction `AXIS_FROM`, does not count.
    """
    ranges = []
    for row in dict.fromkeys(finished.cell.row for finished in runs):
        finished_runs = [finished for finished in runs if finished.cell.row == row and not finished.failure]
        tables = [read_evaluations(History(finished.directory)) for finished in finished_runs]
        if not tables:
            continue
        xs = np.linspace(0, min(table[along].iloc[-1] for table in tables), POINTS)
        ys = np.stack([np.interp(xs, table[along], table["accuracy"]) for table in tables])
        late = ys.mean(0)[int(AXIS_FROM * POINTS) :]
        ranges.append((float(late.min()), float(late.max())))
        if row not in looks:
            axes.plot(xs, ys.mean(0), color=GREY, linewidth=0.8, zorder=1)
            continue
        colour, style = looks[row]
        axes.fill_between(xs, ys.min(0), ys.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(xs, ys.mean(0), color=colour, linestyle=style, linewidth=1.6, label=row)
    axes.set_xlabel(ALONG[along], fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    return ranges


def _draw_numbers(axes: Axes, study: Study, numbers: Sequence[Entry], metric: Metric, looks: Looks) -> None:
    """Draw a line per row and column: our number, its interval, and the paper's number as a hollow mark.

    A black ring marks the best numbers. "edge" marks a best number at the edge of a grid of hyperparameters.
    """
    labels = [_label(study, entry) for entry in numbers]
    best = _best_numbers(study, numbers)
    for place, entry in enumerate(numbers):
        colour = looks.get(entry.row, (GREY,))[0]
        paper = _scale_paper_value(study, entry, numbers)
        if paper is not None:
            axes.plot(paper, place, "o", markerfacecolor="none", markeredgecolor="0.3", markersize=6)
        if not math.isfinite(entry.mean):
            continue
        ends = bounded_interval(entry.values, metric.within)
        if ends is not None:
            axes.plot(ends, (place, place), "-", color=colour, linewidth=1.3, marker="|", markersize=4)
        axes.plot(entry.mean, place, "o", color=colour, markersize=4)
        if any(entry is number for number in best):
            axes.plot(entry.mean, place, "o", markerfacecolor="none", markeredgecolor="black", markersize=9)
            if at_edge(study, entry.column):
                axes.annotate("edge", (entry.mean, place), (7, -2), textcoords="offset points", fontsize=6)
        if is_significant(entry.p):
            axes.annotate("*", (entry.mean, place), (0, 1), textcoords="offset points", ha="center", fontsize=9)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    _widen_axis(axes, metric)
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    axes.ticklabel_format(axis="x", useOffset=False)
    for place, entry in enumerate(numbers):
        if not math.isfinite(entry.mean):
            _write_text(axes, place, entry.text, _scale_paper_value(study, entry, numbers))
    axes.set_xlabel(f"{metric.name}, {metric.better} is better" if metric.better else metric.name, fontsize=8)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _label(study: Study, entry: Entry) -> str:
    if len(study.columns) > 1:
        return f"{entry.row}, {entry.column}"
    return entry.row


def _best_numbers(study: Study, numbers: Sequence[Entry]) -> list[Entry | None]:
    """Return the best number of each column.

    If the columns are values of a hyperparameter, return the best number of each row.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in numbers:
        groups.setdefault(entry.row if study.fixed else entry.column, []).append(entry)
    return [best_of(group) for group in groups.values() if len(group) > 1]


def _write_text(axes: Axes, place: int, text: str, paper: float | None) -> None:
    """Write a text into the row at `place`, on the right if the paper's number is on the left, else on the left."""
    x, side = 0.02, "left"
    if paper is not None and paper < sum(axes.get_xlim()) / 2:
        x, side = 0.98, "right"
    axes.text(x, place, text, transform=axes.get_yaxis_transform(), fontsize=7, va="center", ha=side)


def _widen_axis(axes: Axes, metric: Metric) -> None:
    """Widen the axis to at least ten units of the last decimal in the table, so that tiny differences look tiny."""
    if metric.form.endswith("f"):
        low, high = axes.get_xlim()
        width = 10.0 ** (1 - int(metric.form[1:-1]))
        if high - low < width:
            axes.set_xlim((low + high - width) / 2, (low + high + width) / 2)


def _scale_paper_value(study: Study, entry: Entry, numbers: Sequence[Entry]) -> float | None:
    """Return the paper's number in our units; None if it cannot be converted.

    If the paper measures the metric in other units, its number is multiplied by a factor. The factor is our number in
    the reference row, divided by the paper's number in the reference row.
    """
    if entry.paper is None or not entry.metric.own_units:
        return entry.paper
    base = next((e for e in numbers if (e.row, e.column) == (study.reference, entry.column)), None)
    if base is None or not base.paper or not math.isfinite(base.mean):
        return None
    return entry.paper / base.paper * base.mean


def _picture_caption(study: Study, numbers: Sequence[Entry]) -> str:
    text = format_caption(study, numbers).replace("[ ]", "hollow grey:")
    scaled = [e.metric.name for e in numbers if e.metric.own_units and e.paper is not None]
    if scaled:
        text += f" ({scaled[0]}: as multiples of {study.reference})"
    text += "; intervals on an arcsine or logarithmic scale"
    text += f"; black ring: the best of {'a row' if study.fixed else 'a column'}"
    left_out = [metric.name for metric in study.metrics[MAX_PANELS:]] + study.columns[MAX_PANELS:]
    if left_out:
        text += f"; only in the table: {', '.join(left_out)}"
    return text
