"""A plot of the main metric over time with one line per method."""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedraa.messages import Floats
from fedraa.objectives.metric_spec import metric_heading
from fedraa.report.comparison import hold_last
from fedraa.report.theme import PALETTE, STYLES, limit_axis_to_fractions
from fedraa.rundir.atomic_files import replace_file
from fedraa.rundir.plots import literal_text

# Minimum distance of two labels, as a fraction of the axis. With many labels it is smaller, and the plot is taller.
LABEL_GAP = 0.045
HEIGHT_INCHES = 4.5
# Height of a label, and of the plot's margins.
LABEL_INCHES, MARGIN_INCHES = 0.17, 0.9


def plot_curves(
    runs: Mapping[str, Sequence[pd.DataFrame]],
    path: Path,
    *,
    title: str,
    time_label: str,
    target: float | None,
    column: str,
) -> None:
    """Draw the metric `column` over the run's clock into the PNG file `path`.

    A dot is an evaluation of one seed. The line is the mean over seeds. The band is the range of the seeds. A run that
    ended early keeps its last value.

    Args:
        runs: The `evals` frames (columns t and `column`) of each method, one per seed.
        path: The PNG file.
        title: The title.
        time_label: The label of the time axis.
        target: The value of the target; None if there is no target.
        column: The metric.
    """
    height = max(HEIGHT_INCHES, MARGIN_INCHES + LABEL_INCHES * len(runs))
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    every_evals = [*chain.from_iterable(runs.values())]
    end = max(evals["t"].iloc[-1] for evals in every_evals)
    looks = cycle(product(STYLES, PALETTE))
    ends = {}
    for (method, frames), (style, colour) in zip(runs.items(), looks, strict=False):
        last = max(evals["t"].iloc[-1] for evals in frames)
        times = np.unique(np.concatenate([evals["t"].to_numpy(float) for evals in frames]))
        values = np.stack([hold_last(times, evals["t"], evals[column]) for evals in frames])
        band = (values.min(axis=0), values.max(axis=0))
        axes.fill_between(times, *band, step="post", color=colour, alpha=0.18, linewidth=0)
        axes.plot(times, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.4, drawstyle="steps-post")
        for evals in frames:
            axes.plot(evals["t"], evals[column], color=colour, marker=".", markersize=3, linestyle="", alpha=0.6)
        axes.plot(last, values[:, -1].mean(), color=colour, marker="o", markersize=4, clip_on=False)
        ends[method] = (last, float(values[:, -1].mean()), colour)
    if target is not None:
        axes.axhline(target, color="0.45", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(f"target {target:g}", (0, target), (4, 3), textcoords="offset points", color="0.35", fontsize=8)
    limit_axis_to_fractions(axes, *(evals[column] for evals in every_evals))
    axes.set_xlim(0, end or 1.0)
    _label_lines(axes, ends)
    axes.set_xlabel(time_label)
    axes.set_ylabel(f"test {metric_heading(column)}")
    axes.set_title(literal_text(title), loc="left", fontsize=10)
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    with replace_file(path) as stream:
        figure.savefig(stream, format="png", dpi=110)


def _label_lines(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write the name of every line at the right edge, so that no names overlap.

    `ends` has the time, the value and the colour at the end of each line.
    """
    low, high = axes.get_ylim()
    labels: dict[str, str] = {}
    shown: dict[str, float] = {}
    for name, (_, value, _) in ends.items():
        if np.isfinite(value):
            labels[name] = name
            shown[name] = value
        else:
            labels[name] = f"{name}: not finite"
            shown[name] = low
    names = sorted(ends, key=shown.__getitem__)
    gap = min(LABEL_GAP, 1 / len(names))
    heights = spread_labels(np.array([(shown[name] - low) / (high - low) for name in names]), gap)
    for name, height in zip(names, heights, strict=True):
        last, _, colour = ends[name]
        axes.annotate(
            literal_text(labels[name]),
            (last, shown[name]),
            (1.035, float(height)),
            textcoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


def spread_labels(wanted: Floats, gap: float) -> Floats:
    """Return positions in [0, 1] that are at least `gap` apart and near the ascending positions `wanted`."""
    placed = wanted.copy()
    ceiling = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    floor = 0.0
    for i in range(len(placed)):
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    return placed
