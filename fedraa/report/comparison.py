"""Figures that compare groups of runs: accuracy over time, over steps, over bytes; fairness over time."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from fedraa.report.decided import late, show_decided
from fedraa.report.runs import Group
from fedraa.report.statistics import ci95
from fedraa.report.theme import Picture, blank, legend, look

Floats = npt.NDArray[np.float64]
POINTS = 300
FEWEST = 3  # seeds of which an interval is drawn
# A line this many times shorter than the longest would be a sliver at the left edge of a linear axis.
LOG_FROM = 10


def pictures(groups: Sequence[Group]) -> list[Picture]:
    """The comparison of these groups, one line each."""
    several = any(len(group.runs) > 1 for group in groups)
    band = "Lines are means over seeds, bands their 95 % confidence intervals, or the range of two."
    band = band if several else "A single seed each."
    clock = groups[0].first.flags["clock"]
    of_tasks = "Bytes down and up of all tasks committed by then, so that each method is at what it has paid."
    of_steps = "A step is one server update of an asynchronous method, and one round of a synchronous one."
    main = groups[0].first.figures.main
    said, least = main.replace("_", " "), "lowest" if groups[0].first.figures.better(main) == "max" else "highest"
    title = said[0].upper() + said[1:]
    of_worst = f"The client with the {least} {said} on its own share of the test data."
    return [
        Picture(name, title, f"{about} {band}".strip(), partial(_lines, groups, x, y, xlabel, ylabel))
        for name, title, about, x, y, xlabel, ylabel in (
            (f"{main}-time", f"{title} over time", "", "t", main, f"{clock} time", f"test {said}"),
            (f"{main}-bytes", f"{title} over bytes", of_tasks, "bytes", main, "sent", f"test {said}"),
            (f"{main}-steps", f"{title} over steps", of_steps, "step", main, "server steps", f"test {said}"),
            ("worst-time", "Worst client", of_worst, "t", "client_worst", f"{clock} time", f"worst {said}"),
        )
    ]


def _lines(groups: Sequence[Group], x: str, y: str, xlabel: str, ylabel: str) -> Figure:
    figure, axes = blank(3.4)
    ends = [min(float(run.evals[x].iloc[-1]) for run in group.runs) for group in groups]
    log, seen = max(ends) > LOG_FROM * min(ends) > 0, list[Floats]()
    faint = min(0.18, 1 / len(groups))  # where many bands lie over each other, lines have to be seen through them
    for i, group in enumerate(groups):
        at, mean, half = curve(group, x, y, log=log)
        axes.plot(at, mean, label=group.label, **look(i))
        axes.fill_between(at, mean - half, mean + half, color=look(i)["color"], alpha=faint, linewidth=0)
        axes.plot(at[-1:], mean[-1:], color=look(i)["color"], marker="o", markersize=4)  # also where that is all
        seen.append(late(np.log(at) if log else at, mean))
    show_decided(axes, seen, shares=all(is_share(run.evals[y]) for group in groups for run in group.runs))
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    legend(axes)
    return figure


def is_share(values: pd.Series) -> bool:
    """Whether all are from 0 to 1, as accuracies are."""
    return bool(values.between(0, 1).all())


def curve(group: Group, x: str, y: str, *, log: bool = False) -> tuple[Floats, Floats, Floats]:
    """Where, the mean over seeds, and half the band: of the 95 % interval, or of the range of two seeds, whose interval
    is far wider than anything that could be seen on the axis.

    It ends where the first seed does: beyond, a mean would be over ever fewer of them. For a `log` axis it begins
    with the first evaluation after the start.
    """
    frames = [run.evals[run.evals[x] > 0] if log else run.evals for run in group.runs]
    first = max(float(frame[x].iloc[0]) for frame in frames)
    last = min(float(frame[x].iloc[-1]) for frame in frames)
    space = np.geomspace if log else np.linspace
    at = space(first, last, POINTS) if len(frames) > 1 else frames[0][x].to_numpy(float)
    values = np.stack([np.interp(at, frame[x], frame[y]) for frame in frames])
    if len(frames) < FEWEST:
        return at, values.mean(axis=0), np.ptp(values, axis=0) / 2
    return at, values.mean(axis=0), np.array([ci95(column) or 0.0 for column in values.T])
