"""Forest plots: one plot per paper, one row per claim of the paper.

A claim states that one method is better than another, and several comparisons test it. The row of a claim shows only
the comparison that supports it least, called the weakest: its advantage here with a 95 % interval, and its advantage in
the paper.
"""

import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from textwrap import fill

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.studies.verdict import Advantage
from fedraa.report.theme import PALETTE
from fedraa.rundir.atomic_files import write_text

OURS, PAPER = PALETTE[0], PALETTE[1]
LABEL_LETTERS = 60
# The plot shows at most this ratio and this difference. Longer intervals end at the edge of the plot.
WIDEST_RATIO = 16.0
WIDEST_DIFFERENCE = 40.0
Row = tuple[str, Advantage]
"""The text of a claim, and the comparison that supports the claim least."""


def draw_forest(paper: str, rows: Sequence[Row], path: Path) -> None:
    """Draw a paper's claims into an SVG file, with one panel for ratios and one for differences.

    Args:
        paper: The paper's name.
        rows: The claims of the paper, each with the comparison that supports it least.
        path: The SVG file.
    """
    panels = {ratio: [row for row in rows if row[1].ratio is ratio] for ratio in (True, False)}
    panels = {ratio: members for ratio, members in panels.items() if members}
    heights = [0.45 * len(members) + 0.7 for members in panels.values()]
    # matplotlib writes random ids and the date into SVG files. Fixed ones give equal files for equal numbers.
    with rc_context({"svg.hashsalt": paper, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(8.5, sum(heights) + 0.5), layout="constrained")
        axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for own, (ratio, members) in zip(axes, panels.items(), strict=True):
            draw_rows(own, members, ratio=ratio)
        figure.suptitle(f"{paper}: the weakest comparison of each claim", x=0.01, ha="left", fontsize=9)
        svg = StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    write_text(path, svg.getvalue())


def draw_rows(axes: Axes, rows: Sequence[Row], *, ratio: bool) -> None:
    """Draw a row for each claim.

    A dot shows the advantage in our runs, and a line its 95 % interval. A hollow diamond shows the paper's advantage.

    Args:
        axes: The panel.
        rows: The claims, each with the comparison that supports it least.
        ratio: True if the advantages are ratios, False if they are differences.
    """
    equality = float(ratio)
    low_limit, high_limit = (1 / WIDEST_RATIO, WIDEST_RATIO) if ratio else (-WIDEST_DIFFERENCE, WIDEST_DIFFERENCE)

    def clip(value: float) -> float:
        return min(max(value, low_limit), high_limit)

    if ratio:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}×")
    axes.axvline(equality, color="0.6", linewidth=0.8)
    for place, (_, comparison) in enumerate(rows):
        axes.plot([clip(comparison.low), clip(comparison.high)], [place, place], color=OURS, linewidth=1.5)
        if not math.isnan(comparison.mean):
            axes.plot([clip(comparison.mean)], [place], "o", color=OURS, markersize=4.5, label="here, 95 % interval")
        if not math.isnan(comparison.paper):
            axes.plot([clip(comparison.paper)], [place], "D", color=PAPER, mfc="white", markersize=5, label="paper")
    axes.set_yticks(range(len(rows)), [fill(says, LABEL_LETTERS) for says, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("times better" if ratio else "advantage in the metric's units, mostly points of accuracy")
    handles, labels = axes.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    axes.legend(shown.values(), shown.keys(), loc="best", fontsize=7, frameon=False)
