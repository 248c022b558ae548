"""The picture of the study `race` in one setting: accuracy over time, and the times to the last target."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.studies.picture import COLOURS
from benchmarks.studies.race.entrants import ENTRANTS, FIRST, LIMIT, OURS
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.race.table import group_by_entrant, group_with_ours, make_columns, rank_entrants
from fedraa.report.statistics import half_width95, mean_or_nan
from fedraa.report.theme import PALETTE

POINTS = 300
# The time axis ends at AXIS_FACTOR times the mean time in which the slowest coloured entrant reaches the last target.
AXIS_FACTOR = 1.3
GREY = "0.78"
_FIRST_NAMES = [entrant.name for entrant in FIRST if entrant.name != LIMIT]
_FREE_COLOURS = [colour for colour in COLOURS if colour != PALETTE[-1]]
COLOUR = {LIMIT: PALETTE[-1]} | dict(zip(_FIRST_NAMES, _FREE_COLOURS, strict=False))
SPARE = tuple(colour for colour in COLOURS if colour not in COLOUR.values())
Looks = Mapping[str, str]
Runs = Mapping[str, Sequence[Measured]]


def draw_race(setting: Setting, runs: Sequence[Measured], path: Path) -> None:
    """Draw accuracy curves on the left and times to the last target on the right.

    Filled marks show tuned runs of the other methods, and untuned runs of Fed-Quilt. Hollow marks show untuned runs of
    the other methods.

    Args:
        setting: The setting.
        runs: The tuned and the untuned runs.
        path: The PNG file.
    """
    tuned, untuned = group_with_ours(runs, "tuned"), group_by_entrant(runs, "untuned")
    if tuned:
        untuned.pop(OURS, None)
    names = rank_entrants(make_columns(setting), tuned or untuned)
    names += [name for name in rank_entrants(make_columns(setting), untuned) if name not in names]
    height = max(4.2, 1.3 + 0.22 * len(names))
    figure = Figure(figsize=(11, height), layout="constrained")
    curves, times = figure.subplots(1, 2, width_ratios=(1.25, 1))
    looks = choose_colours(names)
    _draw_curves(curves, setting, tuned or untuned, looks)
    _draw_times(times, setting, {"tuned": tuned, "untuned": untuned}, looks)
    figure.suptitle(f"{setting.title}: {OURS} with its defaults, the others tuned", x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=110)


def choose_colours(names: Sequence[str]) -> dict[str, str]:
    """Choose a colour for each entrant. Most entrants have the same colour in every picture.

    The entrant `limit` is black, and the entrants in the list FIRST have fixed colours. All others get the colours that
    are left, in the order of `names`. When no colour is left, they are grey.
    """
    looks = dict[str, str]()
    spare = iter(SPARE)
    for name in names:
        if name in COLOUR:
            looks[name] = COLOUR[name]
        elif name not in ENTRANTS:
            looks[name] = GREY
        else:
            looks[name] = next(spare, GREY)
    return looks


def _draw_curves(axes: Axes, setting: Setting, by_entrant: Runs, looks: Looks) -> None:
    """Draw each entrant's mean accuracy and its range over the seeds. Coloured curves cover grey curves."""
    grey_names = [name for name in by_entrant if looks[name] == GREY]
    for name, runs in reversed(list(by_entrant.items())):
        xs = np.linspace(0, max(run.spent["t"].iloc[-1] for run in runs), POINTS)
        ys = 100 * np.stack([np.interp(xs, run.spent["t"], run.spent["accuracy"]) for run in runs])
        if name in grey_names:
            # One label stands for all grey curves.
            label = "others" if name == grey_names[0] else None
            axes.plot(xs, ys.mean(0), color=GREY, linewidth=0.8, label=label, zorder=2)
            continue
        axes.fill_between(xs, ys.min(0), ys.max(0), color=looks[name], alpha=0.15, linewidth=0)
        style = "--" if name == LIMIT else "-"
        width = 2.2 if name == OURS else 1.5
        axes.plot(xs, ys.mean(0), color=looks[name], linestyle=style, linewidth=width, label=name, zorder=3)
    for level in setting.targets:
        axes.axhline(100 * level, color="0.45", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            setting.target(level),
            (1, 100 * level),
            (3, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="0.35",
        )
    axes.set_ylim(*accuracy_range(setting.targets))
    axes.set_xlim(0, _axis_end(setting, by_entrant, looks))
    axes.set_xlabel("virtual time", fontsize=9)
    axes.set_ylabel("test accuracy, %", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    shown = [label for label in [*looks, "others"] if label in by_label]
    axes.legend([by_label[label] for label in shown], shown, fontsize=8, loc="lower right", framealpha=0.9)
    _style_axes(axes)
    axes.grid(visible=False)


def accuracy_range(targets: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the accuracy axis, in per cent, so that the targets are in its upper part."""
    first, last = targets[0], targets[-1]
    low = max(0.0, first - 2.5 * (last - first))
    return 100 * low, 100 * last + 0.12 * 100 * (last - low)


def _axis_end(setting: Setting, by_entrant: Runs, looks: Looks) -> float:
    """Return the end of the time axis.

    The coloured entrants are all entrants that are neither grey nor named `limit`. If at least half of them reach the
    last target in every run, the axis ends at AXIS_FACTOR times the longest of their mean times to this target, but not
    after the longest run. If fewer reach the target, the axis ends with the longest run.
    """
    ends = [max(float(run.spent["t"].iloc[-1]) for run in runs) for runs in by_entrant.values()]
    end = max(ends)
    coloured = [runs for name, runs in by_entrant.items() if looks[name] != GREY and name != LIMIT]
    times = [mean_or_nan([run.times[setting.targets[-1]] for run in runs]) for runs in coloured]
    finite = list(filter(math.isfinite, times))
    if not finite or 2 * len(finite) < len(times):
        return end
    return min(end, AXIS_FACTOR * max(finite))


def _draw_times(axes: Axes, setting: Setting, parts: Mapping[str, Runs], looks: Looks) -> None:
    """Draw a row per entrant with its times to the last target. Only filled marks have intervals."""
    level = setting.targets[-1]
    means: list[float] = []
    for place, name in enumerate(looks):
        for part in ("tuned", "untuned"):
            values = [run.times[level] for run in parts[part].get(name, ())]
            if values and all(map(math.isfinite, values)):
                means.append(mean_or_nan(values))
                _draw_mark(axes, place, values, looks[name], filled=part == "tuned")
            elif values and part == "tuned":
                reached = sum(map(math.isfinite, values))
                label = f"{reached} of {len(values)} by {setting.horizon:g}"
                axes.text(
                    0.99,
                    place,
                    label,
                    transform=axes.get_yaxis_transform(),
                    ha="right",
                    va="center",
                    fontsize=7,
                    color="0.4",
                )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if means:
        axes.set_xlim(min(means) / 1.5, max(max(means) * 1.5, setting.horizon))
    axes.set_yticks(range(len(looks)), list(looks), fontsize=8)
    axes.set_ylim(len(looks) - 0.4, -0.7)
    axes.set_xlabel(f"time to {setting.target(level)} (hollow: not tuned)", fontsize=9)
    _style_axes(axes)
    axes.grid(axis="x", color="0.92")


def _draw_mark(axes: Axes, place: int, values: Sequence[float], colour: str, *, filled: bool) -> None:
    """Draw a mark at the mean time. A filled mark also has an interval, and the mean as text."""
    # Grey curves are light. A mark in the same grey would be hard to see, so grey marks are darker.
    edge = "0.5" if colour == GREY else colour
    face = "white"
    half = None
    if filled:
        face = edge
        half = half_width95(values)
    axes.errorbar(
        mean_or_nan(values),
        place,
        xerr=half,
        fmt="o",
        markersize=6,
        markerfacecolor=face,
        markeredgecolor=edge,
        ecolor=edge,
        capsize=2,
    )
    if filled:
        at = (mean_or_nan(values), place)
        axes.annotate(f"{at[0]:.3g}", at, (0, 6), textcoords="offset points", ha="center", fontsize=7)


def _style_axes(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
