"""Plots of one run: timeline, staleness, updates, coverage and clients."""

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedraa.objectives.metric_spec import metric_heading, metric_title
from fedraa.report.fairness import DISTRIBUTION, draw_distribution, last_results
from fedraa.report.runs import Run
from fedraa.report.theme import SEQUENTIAL, Picture, draw_legend, is_fraction, limit_axis_to_fractions, new_figure
from fedraa.report.timeline import (
    draw_time_use,
    draw_timeline,
    select_clients,
    selection_note,
    time_use_caption,
    timeline_caption,
)
from fedraa.rundir.config_file import time_axis_label
from fedraa.rundir.task_timeline import staleness_histogram

STALENESS = (
    "Commits by staleness, the number of updates of a fragment between dispatch and commit. The line is the mean."
)
UPDATES = "Committed tasks by fragment."
HEAT = "Committed tasks by client and fragment."
COVERAGE = (
    "Above: the number of clients that trained a parameter in a round, for the least and the best covered parameter. "
    "Below: the share of the parameters that no client trained."
)


def run_pictures(run: Run, name: str) -> list[Picture]:
    """Return the plots for which the run has data. Each plot's file name begins with `name`."""
    fragments = run.tasks["fragment"].nunique()
    rounds = len(run.rounds)
    commits = not run.done_tasks.empty
    metric = metric_heading(run.metric_spec.main)
    shown: list[tuple[bool, str, str, str, Callable[[Run], Figure]]] = [
        (True, "timeline", "Tasks over time", timeline_caption(run), draw_timeline),
        (True, "time-use", "Time breakdown", time_use_caption(run), draw_time_use),
        (True, "clients", f"Client {metric}", clients_caption(run), draw_client_metric),
        (
            not last_results(run).empty,
            "fairness",
            f"Clients by {metric}",
            DISTRIBUTION.format(metric=metric),
            draw_distribution,
        ),
        (commits and not rounds, "staleness", "Staleness", STALENESS, draw_staleness),
        (commits and fragments > 1, "updates", "Updates per fragment", UPDATES, draw_updates),
        (
            commits and fragments > 1,
            "heat",
            "Clients by fragments",
            HEAT + selection_note(run),
            draw_commit_heat_map,
        ),
        (rounds > 0, "coverage", "Coverage by round", COVERAGE, draw_coverage),
    ]
    return [
        Picture(f"{name}-{part}", title, caption, partial(draw, run))
        for has_data, part, title, caption, draw in shown
        if has_data
    ]


def draw_staleness(run: Run) -> Figure:
    """Return a histogram of the staleness of all commits."""
    figure, axes = new_figure(2.8)
    values = run.done_tasks["staleness"].to_numpy(int)
    width, counts = staleness_histogram(values)
    axes.bar(np.arange(len(counts)) * width + (width - 1) / 2, counts, color="C0", width=0.8 * width)
    axes.axvline(values.mean(), color="C1", linestyle="--", label=f"mean {values.mean():.2f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("staleness")
    axes.set_ylabel("commits")
    axes.grid(axis="x", visible=False)
    draw_legend(axes)
    return figure


def draw_updates(run: Run) -> Figure:
    """Return a bar chart of the commits per fragment."""
    figure, axes = new_figure(2.8)
    counts = run.done_tasks["fragment"].value_counts().sort_index()
    bars = axes.bar(counts.index.astype(str), counts, color="C0", width=0.7)
    if len(counts) <= 12:
        axes.bar_label(bars, padding=2, fontsize=9)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("fragment")
    axes.set_ylabel("commits")
    axes.grid(axis="x", visible=False)
    return figure


def draw_commit_heat_map(run: Run) -> Figure:
    """Return a heat map of the commits per client and fragment."""
    shown = select_clients(run.clients)
    counts = run.done_tasks.groupby(["client", "fragment"]).size().unstack(fill_value=0).reindex(shown, fill_value=0)
    figure, axes = new_figure(1.7 + 0.11 * max(len(shown), 15))
    image = axes.imshow(counts, aspect="auto", cmap=SEQUENTIAL, interpolation="nearest", vmin=0)
    figure.colorbar(image, ax=axes, label="commits", pad=0.02, ticks=MaxNLocator(integer=True))
    across, down = -(-counts.shape[1] // 12), -(-len(shown) // 10)
    axes.set_xticks(range(0, counts.shape[1], across), [str(name) for name in counts.columns[::across]])
    axes.set_yticks(range(0, len(shown), down), [str(client) for client in shown[::down]])
    axes.set_xlabel("fragment")
    axes.set_ylabel("client")
    axes.grid(visible=False)
    return figure


def draw_coverage(run: Run) -> Figure:
    """Return a plot of the minimum and maximum number of clients that train a coordinate in each round."""
    figure, (above, below) = new_figure(3.6, rows=2, sharex=True, height_ratios=(2, 1))
    rounds = run.rounds["round"].to_numpy(int)
    low = run.rounds["coverage_min"].to_numpy(int)
    high = run.rounds["coverage_max"].to_numpy(int)
    above.fill_between(rounds, low, high, step="mid", color="C0", alpha=0.25, linewidth=0)
    above.step(rounds, high, where="mid", color="C0", label="best covered")
    above.step(rounds, low, where="mid", color="C1", linestyle="--", label="least covered")
    above.set_ylim(bottom=0)
    above.set_ylabel("clients")
    share = run.rounds["uncovered"].to_numpy(float) / run.config["resolved"]["parameters"]
    below.bar(rounds, share, color="C4", width=1.0)
    below.set_ylim(0, max(0.05, float(share.max()) * 1.15))
    below.yaxis.set_major_formatter(PercentFormatter(1))
    below.set_ylabel("uncovered")
    below.set_xlabel("round")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw_legend(above)
    return figure


def clients_caption(run: Run) -> str:
    """Return the caption of the plot of the main metric over clients."""
    return (
        f"{metric_title(run.metric_spec.main)} of the full model on each client's test data: the mean over clients, "
        "one standard deviation around it, and the worst client."
    )


def draw_client_metric(run: Run) -> Figure:
    """Return a plot of the main metric's mean, standard deviation and worst value over clients."""
    figure, axes = new_figure(2.8)
    evals = run.evals
    mean, std = evals["client_mean"], evals["client_std"]
    low, high = mean - std, mean + std
    if is_fraction(mean):
        low, high = low.clip(0), high.clip(upper=1)
    axes.fill_between(evals["t"], low, high, color="C0", alpha=0.2, linewidth=0)
    axes.plot(evals["t"], mean, color="C0", label="mean ± std")
    axes.plot(evals["t"], evals["client_worst"], color="C1", linestyle="--", label="worst")
    limit_axis_to_fractions(axes, mean, evals["client_worst"])
    axes.set_xlim(0, run.end or 1.0)
    axes.set_xlabel(time_axis_label(run.options))
    axes.set_ylabel(metric_heading(run.metric_spec.main))
    draw_legend(axes)
    return figure
