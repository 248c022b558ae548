"""A setting's race as a picture: accuracy over time, and when each is at the last target."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.studies.picture import COLOURS
from benchmarks.studies.race.entrants import FIRST, LENT_TO, LIMIT, OURS
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.race.table import columns, of_part, order
from fedraa.report.curves import PALETTE
from fedraa.report.statistics import ci95, mean

POINTS = 300
SEEN = 1.3  # of the time of the slowest of those in colour that are at the last target, where that is half of them
GREY = "0.78"
COLOUR = {LIMIT: PALETTE[-1]} | dict(
    zip(
        (entrant.name for entrant in FIRST if entrant.name != LIMIT),
        (c for c in COLOURS if c != PALETTE[-1]),
        strict=False,
    )
)
SPARE = tuple(colour for colour in COLOURS if colour not in COLOUR.values())
Looks = Mapping[str, str]


def draw(setting: Setting, runs: Sequence[Measured], path: Path) -> None:
    """Curves of the tuned ones on the left; on the right the time of all to the last target, hollow where untuned."""
    tuned, untuned = of_part(runs, "tuned"), of_part(runs, "untuned")
    names = order(columns(setting), tuned or untuned)
    names += [name for name in order(columns(setting), untuned) if name not in names]
    height = max(4.2, 1.3 + 0.22 * len(names))
    figure = Figure(figsize=(11, height), layout="constrained")
    curves, times = figure.subplots(1, 2, width_ratios=(1.25, 1))
    looks = colours(names)
    _curves(curves, setting, tuned or untuned, looks)
    _times(times, setting, names, tuned, untuned, looks)
    figure.suptitle(f"{setting.title}: tuned against tuned", x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=110)


def colours(names: Sequence[str]) -> dict[str, str]:
    """The limit is black; the first entrants have the same colour in every race, the best others one that is left."""
    looks, left = dict[str, str](), iter(SPARE)
    for name in names:
        looks[name] = COLOUR.get(name) or (GREY if name in LENT_TO else next(left, GREY))
    return looks


def _curves(axes: Axes, setting: Setting, of: Mapping[str, Sequence[Measured]], looks: Looks) -> None:
    """Mean over the seeds and their range; a run that has ended keeps its last value. Who is grey lies below."""
    low = setting.targets[0] - 2.5 * (setting.targets[-1] - setting.targets[0])
    end, arrived = 0.0, list[float]()  # when the last run ended, and when each in colour was at the last target
    faint = next((name for name in of if looks[name] == GREY), None)
    for name, runs in reversed(list(of.items())):
        colour = looks[name]
        last = max(run.spent["t"].iloc[-1] for run in runs)
        end = max(end, last)
        xs = np.linspace(0, last, POINTS)
        ys = 100 * np.stack([np.interp(xs, run.spent["t"], run.spent["accuracy"]) for run in runs])
        above = colour != GREY
        if above and name != LIMIT:
            arrived.append(mean([run.times[setting.targets[-1]] for run in runs]))
        if above:
            axes.fill_between(xs, ys.min(0), ys.max(0), color=colour, alpha=0.15, linewidth=0)
        style = "--" if name == LIMIT else "-"
        width = 2.2 if name == OURS else 1.5 if above else 0.8
        label = name if above else "others" if name == faint else None
        axes.plot(xs, ys.mean(0), color=colour, linestyle=style, linewidth=width, label=label, zorder=2 + above)
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
    axes.set_ylim(100 * low, 100 * setting.targets[-1] + 0.12 * 100 * (setting.targets[-1] - low))
    there = list(filter(math.isfinite, arrived))
    axes.set_xlim(0, min(end, SEEN * max(there)) if there and 2 * len(there) >= len(arrived) else end)
    axes.set_xlabel("virtual time", fontsize=9)
    axes.set_ylabel("test accuracy, %", fontsize=9)
    lines, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(lines, labels, strict=True), key=lambda pair: [*looks, "others"].index(pair[1]))
    axes.legend(
        [line for line, _ in pairs], [label for _, label in pairs], fontsize=8, loc="lower right", framealpha=0.9
    )
    _plain(axes)
    axes.grid(visible=False)


def _times(
    axes: Axes,
    setting: Setting,
    names: Sequence[str],
    tuned: Mapping[str, Sequence[Measured]],
    untuned: Mapping[str, Sequence[Measured]],
    looks: Looks,
) -> None:
    """A row per entrant, the tuned with their interval, on a logarithmic axis; who is not always there is named."""
    level = setting.targets[-1]
    seen: list[float] = []
    never: list[tuple[int, str]] = []
    for place, name in enumerate(names):
        for runs, filled in ((tuned.get(name, ()), True), (untuned.get(name, ()), False)):
            if not runs:
                continue
            values = [run.times[level] for run in runs]
            if not all(map(math.isfinite, values)):
                there = sum(map(math.isfinite, values))
                if filled:
                    never.append((place, f"{there} of {len(values)} by {setting.horizon:g}"))
                continue
            at = mean(values)
            seen.append(at)
            face = looks[name] if filled else "white"
            edge = looks[name] if looks[name] != GREY else "0.5"
            axes.errorbar(
                at,
                place,
                xerr=ci95(values) if filled else None,
                fmt="o",
                markersize=6,
                markerfacecolor=face if face != GREY else "0.5",
                markeredgecolor=edge,
                ecolor=edge,
                capsize=2,
            )
            if filled:
                axes.annotate(f"{at:.3g}", (at, place), (0, 6), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if seen:
        axes.set_xlim(min(seen) / 1.5, max(max(seen) * 1.5, setting.horizon))
    for place, told in never:
        axes.text(
            0.99, place, told, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=7, color="0.4"
        )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.set_xlabel(f"time to {setting.target(level)} (hollow: defaults, untuned)", fontsize=9)
    _plain(axes)
    axes.grid(axis="x", color="0.92")


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
