"""A study as one picture: accuracy as the runs went on, and the numbers of its table beside the paper's.

A colour is one row of the table, everywhere; columns are panels above and labels below.
"""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from benchmarks.studies.interval import interval
from benchmarks.studies.metrics import Metric, evaluations
from benchmarks.studies.setting import setting
from benchmarks.studies.study import Finished, Study
from benchmarks.studies.tables import Entry, at_edge, best_of, caption
from fedraa.report.curves import PALETTE, STYLES
from fedraa.report.statistics import significant
from fedraa.rundir.history import History

ALONG = {"step": "server steps", "t": "time on the run's clock", "bytes": "bytes sent"}
MOST = 4  # panels side by side
POINTS = 200
NAMED = 10  # curves in colour; of more rows the others are grey
TICKS = 5
LETTERS = 16  # of the caption per inch
GREY = "0.75"
OTHERS = "the others"
COLOURS = (*PALETTE, "#882255", "#999933", "#332288")  # as many as rows are named: none is two rows
DECIDED = 0.25  # of the way: what lies below all that is reached from then on is not shown


def draw(study: Study, runs: Sequence[Finished], found: Sequence[Entry], path: Path) -> None:
    """Curves per column above, each metric's numbers below; the paper's are hollow."""
    columns, metrics = study.columns[:MOST], study.metrics[:MOST]
    across = max(len(columns), len(metrics))
    tall = 0.2 * max(sum(entry.metric == metric for entry in found) for metric in metrics) + 1.2
    heights = [3.2, tall] if study.along else [tall]
    figure = Figure(figsize=(max(7.5, 3.4 * across), sum(heights) + 0.2), layout="constrained")
    *above, below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights).ravel()
    looks = _looks(study, found)
    if study.along:
        _all_curves(above[0], study, columns, runs, looks)
    for axes, metric in zip(below.subplots(1, len(metrics), squeeze=False, sharey=True)[0], metrics, strict=True):
        _numbers(axes, study, [entry for entry in found if entry.metric == metric], metric, looks)
    wide = int(LETTERS * figure.get_figwidth() * 0.75)
    figure.suptitle(f"{study.title}\n{fill(setting(study), wide)}", x=0.01, ha="left", fontsize=9)
    figure.supxlabel(
        fill(_caption(study, found), int(LETTERS * figure.get_figwidth())), x=0.01, ha="left", fontsize=7, color="0.35"
    )
    figure.savefig(path, dpi=130)


def _looks(study: Study, found: Sequence[Entry]) -> dict[str, tuple[str, str]]:
    """Colour and style of every row that is named: all, or the reference and those that are best in the first metric.

    Of several columns the first one that a row is in counts.
    """
    named = study.rows
    if len(named) > NAMED:
        metric = study.metrics[0]
        means = {entry.row: entry.mean for entry in reversed(found) if entry.metric == metric and entry.values}
        order = sorted(means, key=means.__getitem__, reverse=metric.better == "more")
        best = {study.reference, *[row for row in order if row != study.reference][: NAMED - 1]}
        named = [row for row in order if row in best]
    return dict(zip(named, zip(COLOURS, cycle(STYLES)), strict=False))


def _all_curves(
    part: SubFigure,
    study: Study,
    columns: Sequence[str],
    runs: Sequence[Finished],
    looks: dict[str, tuple[str, str]],
) -> None:
    """A panel per column, one legend."""
    assert study.along is not None
    panels = part.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    ends = []
    for axes, column in zip(panels, columns, strict=True):
        ends += _curves(axes, [each for each in runs if each.cell.column == column], looks, study.along)
        axes.set_title(column, loc="left", fontsize=9)
    _where_decided(panels[0], ends)
    panels[0].set_ylabel("test accuracy", fontsize=8)
    lines = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [row for row in looks if row in lines]
    if len(looks) < len(study.rows):
        (lines[OTHERS],) = panels[0].plot([], [], color=GREY, linewidth=0.8)
        names.append(OTHERS)
    part.legend([lines[name] for name in names], names, loc="outside right upper", fontsize=8, frameon=False)


def _where_decided(axes: Axes, ends: Sequence[tuple[float, float]]) -> None:
    """The axis shows what rows reach from a part of the way on; how they left chance is not what is compared."""
    if ends:
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        margin = max(0.005, 0.05 * (high - low))
        axes.set_ylim(max(0.0, low - margin), min(1.0, high + margin))


def _curves(
    axes: Axes, runs: Sequence[Finished], looks: dict[str, tuple[str, str]], along: str
) -> list[tuple[float, float]]:
    """Mean accuracy over the seeds of each row, and their range; as far as all of its runs came.

    Returns the least and the largest value of each from DECIDED of the way on.
    """
    ends = []
    for row in dict.fromkeys(each.cell.row for each in runs):
        tables = [evaluations(History(each.directory)) for each in runs if each.cell.row == row and not each.failure]
        if not tables:
            continue
        xs = np.linspace(0, min(table[along].iloc[-1] for table in tables), POINTS)
        ys = np.stack([np.interp(xs, table[along], table["accuracy"]) for table in tables])
        late = ys.mean(0)[int(DECIDED * POINTS) :]
        ends.append((float(late.min()), float(late.max())))
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
    return ends


def _numbers(
    axes: Axes, study: Study, found: Sequence[Entry], metric: Metric, looks: dict[str, tuple[str, str]]
) -> None:
    """One line per row and column: ours with its interval, the paper's, and a ring about the best of each column.

    Where rows choose from a grid, it is the best of each row, and an arrow tells that it is at the grid's edge.
    """
    labels, bands = [], len(study.columns) > 1
    groups = [
        [e for e in found if (e.row if study.fixed else e.column) == name]
        for name in (study.rows if study.fixed else study.columns)
    ]
    best = [best_of(group) for group in groups if len(group) > 1]
    untold: list[tuple[int, str, float | None]] = []
    for place, entry in enumerate(found):
        colour = looks.get(entry.row, (GREY,))[0]
        labels.append(f"{entry.row}, {entry.column}" if bands else entry.row)
        if math.isfinite(entry.mean):
            ends = interval(entry.values, metric.within)
            if ends is not None:
                axes.plot(ends, (place, place), "-", color=colour, linewidth=1.3, marker="|", markersize=4)
            axes.plot(entry.mean, place, "o", color=colour, markersize=4)
            if any(entry is each for each in best):
                axes.plot(entry.mean, place, "o", markerfacecolor="none", markeredgecolor="black", markersize=9)
                if at_edge(study, entry.column):
                    axes.annotate("edge", (entry.mean, place), (7, -2), textcoords="offset points", fontsize=6)
            if significant(entry.p):
                axes.annotate("*", (entry.mean, place), (0, 1), textcoords="offset points", ha="center", fontsize=9)
        paper = _paper(study, entry, found)
        if not math.isfinite(entry.mean):
            untold.append((place, entry.text, paper))
        if paper is not None:
            axes.plot(paper, place, "o", markerfacecolor="none", markeredgecolor="0.3", markersize=6)
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    _widen(axes, metric)
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    axes.ticklabel_format(axis="x", useOffset=False)
    for place, text, paper in untold:  # on the side that the paper's number leaves free
        right = paper is not None and paper < sum(axes.get_xlim()) / 2
        x, side = (0.98, "right") if right else (0.02, "left")
        axes.text(x, place, text, transform=axes.get_yaxis_transform(), fontsize=7, va="center", ha=side)
    axes.set_xlabel(metric.name + (f", {metric.better} is better" if metric.better else ""), fontsize=8)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _widen(axes: Axes, metric: Metric) -> None:
    """Ten of the last decimal that the table shows are the least that the axis spans."""
    if metric.form.endswith("f"):
        low, high = axes.get_xlim()
        least = 10.0 ** (1 - int(metric.form[1:-1]))
        if high - low < least:
            axes.set_xlim((low + high - least) / 2, (low + high + least) / 2)


def _paper(study: Study, entry: Entry, found: Sequence[Entry]) -> float | None:
    """Where the paper's number is to be drawn: where its units are not ours, the reference rows are laid together."""
    if entry.paper is None or not entry.metric.own_units:
        return entry.paper
    base = next((e for e in found if (e.row, e.column) == (study.reference, entry.column)), None)
    if base is None or not base.paper or not math.isfinite(base.mean):
        return None
    return entry.paper / base.paper * base.mean


def _caption(study: Study, found: Sequence[Entry]) -> str:
    text = caption(study, found).replace("[ ]", "hollow grey:") + "; intervals on an arcsine or logarithmic scale"
    text += f"; black ring: the best of {'a row' if study.fixed else 'a column'}"
    scaled = [e.metric.name for e in found if e.metric.own_units and e.paper is not None]
    if scaled:
        text += f" ({scaled[0]}: as multiples of {study.reference})"
    left_out = [metric.name for metric in study.metrics[MOST:]] + study.columns[MOST:]
    return f"{text}; in the table alone: {', '.join(left_out)}" if left_out else text
