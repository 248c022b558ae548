"""Show a run in a notebook as a table and a small curve, and plot columns with matplotlib."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fedraa.errors import InputError
from fedraa.objectives.metric_spec import metric_heading
from fedraa.rundir.atomic_files import escape_bytes

if TYPE_CHECKING:
    import pandas as pd

# Size of the small curve in pixels.
WIDTH, HEIGHT = 320, 90
BLUE = "#0072B2"
# A curve has a dot per evaluation if it has fewer evaluations than this number.
MAX_DOTS = 30


class Plot(Figure):
    """A figure that notebooks display with every matplotlib backend."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


def literal_text(text: str) -> str:
    """Return a text for matplotlib that shows every character of a name, because `$` begins a formula there."""
    return escape_bytes(text).replace("$", r"\$")


def plot_column(evals: "pd.DataFrame", y: str, x: str, *, title: str, time_label: str) -> Plot:
    """Return a plot of column `y` of the evaluations over column `x`.

    Args:
        evals: The evaluations.
        y: The column of the vertical axis.
        x: The column of the horizontal axis.
        title: The title.
        time_label: The label of the axis of `t`.

    Raises:
        ValueError: There is no such column. The error lists the columns.
    """
    for name in (x, y):
        if name not in list(evals.columns):
            raise InputError("plot", got=name, expected=f"one of {', '.join(evals.columns)}")
    figure = Plot(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(evals[x], evals[y], marker="." if len(evals) < MAX_DOTS else "", color=BLUE)
    axes.set_xlabel(time_label if x == "t" else metric_heading(x))
    axes.set_ylabel(metric_heading(y))
    axes.set_title(literal_text(title))
    axes.grid(alpha=0.3)
    return figure


def render_html(title: str, rows: Mapping[str, str], evals: "pd.DataFrame", y: str) -> str:
    """Return a table of these rows as HTML, with the curve of column `y` over time.

    Args:
        title: The caption.
        rows: The cells by their row names.
        evals: The evaluations.
        y: The column of the curve.
    """
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    table = f"<table><caption><b>{escape(title)}</b></caption>{cells}</table>"
    line = _draw_curve(evals["t"].tolist(), evals[y].tolist(), f"{metric_heading(y)} over time")
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: center">{table}{line}</div>'


def _draw_curve(x: Sequence[float], y: Sequence[float], caption: str) -> str:
    """Return a small line plot of the finite points as HTML; an empty text for fewer than two points."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if isfinite(b)]
    if len(points) < 2:
        return ""
    start = points[0][0]
    low, high = min(b for _, b in points), max(b for _, b in points)
    # The range 1 avoids a division by 0 if all points have the same time or value.
    x_range = points[-1][0] - start or 1.0
    y_range = high - low or 1.0
    line = " ".join(f"{WIDTH * (a - start) / x_range:.1f},{HEIGHT * (1 - (b - low) / y_range):.1f}" for a, b in points)
    return (
        f'<figure style="margin: 0"><svg viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/></svg>'
        f"<figcaption>{escape(caption)}: {low:.4g} to {high:.4g}</figcaption></figure>"
    )
