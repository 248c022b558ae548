"""Plots of the tasks over time and of the clients' idle time."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from fedraa.messages import Floats
from fedraa.report.runs import Run
from fedraa.report.theme import PALETTE, SEQUENTIAL, draw_legend, new_figure
from fedraa.rundir.config_file import time_axis_label

# Maximum number of clients in a plot. Each client has a lane, a row of the plot.
MAX_LANES = 40
# The time axis ends when half of the shown clients have TASKS_PER_LANE tasks, because more tasks would overlap.
TASKS_PER_LANE = 25


def select_clients(clients: int) -> npt.NDArray[np.int64]:
    """Return all clients, or `MAX_LANES` evenly spaced ones if there are more."""
    return np.linspace(0, clients - 1, min(clients, MAX_LANES)).round().astype(np.int64)


def selection_note(run: Run) -> str:
    """Return a sentence about the clients that a plot shows; an empty text if it shows all clients."""
    if run.clients <= MAX_LANES:
        return ""
    return f" {MAX_LANES} of {run.clients} clients are shown, at even distances."


def window_end(run: Run) -> float:
    """Return the time at which the plot ends. By then half of the shown clients have had `TASKS_PER_LANE` tasks."""
    tasks = run.tasks.sort_values("start")
    full = tasks[tasks.groupby("client").cumcount() == TASKS_PER_LANE].set_index("client")["start"]
    return float(full.reindex(select_clients(run.clients)).fillna(run.end).median())


def timeline_caption(run: Run) -> str:
    """Return the caption of the chart of tasks over time."""
    shown = window_end(run)
    caption = "One lane per client. A bar is a task from dispatch to commit, and a gap is idle time."
    if shown < run.end:
        caption += f" The first {shown:.3g} of {run.end:.4g} {run.time_unit}."
    return caption + selection_note(run)


def draw_timeline(run: Run) -> Figure:
    """Return a chart of the tasks over time, with one lane per client."""
    until = window_end(run)
    shown = select_clients(run.clients)
    figure, axes = _new_lane_figure(shown)
    tasks = run.tasks[run.tasks["client"].isin(shown) & (run.tasks["start"] < until)]
    bars = _bar_corners(
        tasks["start"].to_numpy(float),
        np.minimum(tasks["end"].to_numpy(float), until),
        np.searchsorted(shown, tasks["client"].to_numpy()).astype(float),
    )
    names = sorted(run.tasks["fragment"].unique())
    which = np.searchsorted(names, tasks["fragment"].to_numpy())
    if len(names) <= len(PALETTE):
        colours = [f"C{i}" for i in which]
        edge = axes.get_facecolor()
        axes.add_collection(PolyCollection(bars, facecolors=colours, edgecolors=[edge], linewidths=0.5))
        if len(names) > 1:
            draw_legend(axes, "fragment", [Patch(color=f"C{i}", label=str(name)) for i, name in enumerate(names)])
    else:
        bands = PolyCollection(bars, array=which, cmap=SEQUENTIAL, edgecolors="face", linewidths=0.3)
        bands.set_clim(0, len(names) - 1)
        axes.add_collection(bands)
        ticks = np.linspace(0, len(names) - 1, min(len(names), 10)).round().astype(int)
        bar = figure.colorbar(bands, ax=axes, label="fragment", pad=0.02, ticks=ticks)
        bar.ax.set_yticklabels([str(names[i]) for i in ticks])
    # A run can end at time 0, but an axis must have a length.
    axes.set_xlim(0, until or 1.0)
    axes.set_xlabel(time_axis_label(run.options))
    return figure


def time_use_caption(run: Run) -> str:
    """Return the caption of the chart of working and idle time."""
    pauses = ""
    if run.config["resolved"]["availability"] is not None:
        pauses = ", and pauses while the device was not available"
    return (
        f"Share of the run in which each client had a task (training and transfer{pauses}) or had none. "
        f"Over all clients: {run.idle_fraction:.0%} idle.{selection_note(run)}"
    )


def draw_time_use(run: Run) -> Figure:
    """Return a bar chart of the fractions of each client's time with a task and without one."""
    shown = select_clients(run.clients)
    figure, axes = _new_lane_figure(shown)
    busy = (run.tasks["end"] - run.tasks["start"]).groupby(run.tasks["client"]).sum() / run.end
    share = busy.reindex(shown).fillna(0).to_numpy(float)
    rows = np.arange(len(shown))
    axes.barh(rows, share, color="C0", height=0.76, label="task")
    axes.barh(rows, 1 - share, left=share, color="C4", height=0.76, label="idle", hatch="//", alpha=0.55)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(f"share of {run.end:.4g} {run.time_unit}")
    draw_legend(axes)
    return figure


def _new_lane_figure(shown: npt.NDArray[np.int64]) -> tuple[Figure, Axes]:
    figure, axes = new_figure(1.7 + 0.11 * max(len(shown), 15))
    axes.set_ylim(len(shown) - 0.4, -0.6)
    every = -(-len(shown) // 10)
    axes.set_yticks(range(0, len(shown), every), [str(client) for client in shown[::every]])
    axes.set_ylabel("client")
    axes.grid(axis="y", visible=False)
    return figure, axes


def _bar_corners(left: Floats, right: Floats, lane: Floats) -> list[Floats]:
    """Return the corners [4, 2] of each task's rectangle."""
    low, high = lane - 0.38, lane + 0.38
    corners = ((left, low), (right, low), (right, high), (left, high))
    return list(np.stack([np.stack(corner, -1) for corner in corners], 1))
