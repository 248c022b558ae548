"""Plots that compare groups of runs."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from fedraa.messages import Floats
from fedraa.objectives.metric_spec import metric_heading, metric_title
from fedraa.report.runs import Group, have_same_clock, runs_of
from fedraa.report.statistics import confidence_interval
from fedraa.report.theme import Picture, draw_legend, limit_axis_to_fractions, line_style, new_figure
from fedraa.rundir.config_file import time_axis_label
from fedraa.rundir.plots import literal_text

# With fewer seeds, a band reaches from the smallest to the largest value. With more, it is a confidence interval.
MIN_SEEDS_FOR_INTERVAL = 3
# A line with more evaluations has no dots, because they would hide the line.
MAX_MARKS = 60
# The x axis is logarithmic if the longest line is more than this number of times as long as the shortest.
MIN_LOG_RATIO = 10


def comparison_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Return the plots that compare these groups, with one line per group."""
    band = "One seed per method."
    if any(len(group.runs) > 1 for group in groups):
        band = "Lines are means over seeds until the first seed ends. "
        band += "Bands are 95 % confidence intervals, or the range of two seeds."
    time_label = time_axis_label(groups[0].first.options)
    metric_spec = groups[0].first.metric_spec
    main = metric_spec.main
    label = metric_heading(main)
    title = metric_title(main)
    extreme = "lowest" if metric_spec.better(main) == "max" else "highest"
    about_bytes = (
        "Bytes down and up of all tasks committed so far, and bytes down of tasks that were too late for their round. "
        "This compares methods at equal traffic."
    )
    about_steps = "A step is one server update of an asynchronous method, and one round of a synchronous one."
    about_worst = f"The client with the {extreme} {label} on its own test data."
    plots = (
        (f"{main}-time", f"{title} over time", "", "t", main, time_label, f"test {label}"),
        (f"{main}-bytes", f"{title} over bytes", about_bytes, "bytes", main, "sent", f"test {label}"),
        (f"{main}-steps", f"{title} over steps", about_steps, "step", main, "server steps", f"test {label}"),
        ("worst-time", "Worst client", about_worst, "t", "client_worst", time_label, f"worst {label}"),
    )
    # Times of different clocks have different units, so they do not fit on one axis.
    axes = ("t", "bytes", "step") if have_same_clock(groups) else ("bytes", "step")
    return [
        Picture(name, title, f"{about} {band}".strip(), partial(_draw_lines, groups, x, y, xlabel, ylabel))
        for name, title, about, x, y, xlabel, ylabel in plots
        if x in axes
    ]


def _draw_lines(groups: Sequence[Group], x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    """Return a plot of column `y` over column `x` of the evaluations, with one line per group."""
    figure, axes = new_figure(3.4)
    ends = [_last_place(group, x) for group in groups]
    log = max(ends) > MIN_LOG_RATIO * min(ends) > 0
    # With many groups the bands overlap, so they must be faint.
    faint = min(0.18, 1 / len(groups))
    for i, group in enumerate(groups):
        at, mean, low, high = mean_curve(group, x, y, log=log)
        axes.plot(at, mean, label=literal_text(group.label), drawstyle="steps-post", **line_style(i))
        axes.fill_between(at, low, high, step="post", color=line_style(i)["color"], alpha=faint, linewidth=0)
        # The dot at the end makes a line visible that has only one evaluation.
        axes.plot(at[-1:], mean[-1:], color=line_style(i)["color"], marker="o", markersize=4)
        _mark_evaluations(axes, group, x, y, color=line_style(i)["color"])
    limit_axis_to_fractions(axes, *(run.evals[y] for run in runs_of(groups)))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    draw_legend(axes)
    return figure


def _last_place(group: Group, x: str) -> float:
    """Return the value of column `x` at which the group's shortest run ended.

    After its last evaluation, a run may have waited for updates until its time limit. The model did not change then.
    """
    if x == "t":
        return min(run.end for run in group.runs)
    return min(float(run.evals[x].iloc[-1]) for run in group.runs)


def _mark_evaluations(axes: Axes, group: Group, x: str, y: str, *, color: str) -> None:
    """Draw a dot per evaluation of each seed.

    A run with more than `MAX_MARKS` evaluations gets no dots, because they would hide the line.
    """
    for run in group.runs:
        if len(run.evals) <= MAX_MARKS:
            axes.plot(run.evals[x], run.evals[y], color=color, marker=".", markersize=3, linestyle="", alpha=0.5)


def mean_curve(group: Group, x: str, y: str, *, log: bool = False) -> tuple[Floats, Floats, Floats, Floats]:
    """Return x positions [K], the mean over seeds [K], and the lower and upper end of its band [K].

    At each position, a seed has the value of its last evaluation. The band is the 95 % confidence interval. With
    two seeds, it reaches from the smaller to the larger value. The line ends with the shortest run.

    Args:
        group: The runs.
        x: The column of the horizontal axis.
        y: The column of the vertical axis.
        log: True for a logarithmic horizontal axis, which has no position 0.
    """
    frames = [run.evals for run in group.runs]
    first = max(float(frame[x].iloc[0]) for frame in frames)
    last = _last_place(group, x)
    at = np.unique(np.concatenate([*(frame[x].to_numpy(float) for frame in frames), [last]]))
    at = at[(at >= first) & (at <= last)]
    if log:
        at = at[at > 0]
    values = np.stack([hold_last(at, frame[x], frame[y]) for frame in frames])
    mean = values.mean(axis=0)
    if len(frames) < MIN_SEEDS_FOR_INTERVAL:
        return at, mean, values.min(axis=0), values.max(axis=0)
    bounds = group.first.metric_spec.bounds(y)
    ends = [confidence_interval(column, bounds) or (np.nan, np.nan) for column in values.T]
    low, high = np.transpose(ends)
    return at, mean, low, high


def hold_last(at: Floats, times: pd.Series, values: pd.Series) -> Floats:
    """Return the value of the last evaluation at or before each position [K].

    Positions before the first evaluation get the first value.

    Args:
        at: The positions [K].
        times: The ascending positions of the evaluations [E].
        values: The values of the evaluations [E].
    """
    last = np.searchsorted(times.to_numpy(float), at, side="right") - 1
    return values.to_numpy(float)[np.maximum(last, 0)]
