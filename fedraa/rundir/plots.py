"""A run as a notebook shows it: a table with its curve, and the same curve as a figure of matplotlib."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fedraa.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

WIDTH, HEIGHT = 320, 90  # pixels of the small curve
BLUE = "#0072B2"
DOTTED = 30  # evaluations up to which each is marked


class Plot(Figure):
    """A figure that notebooks show however matplotlib is set up."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


def plot(evals: "pd.DataFrame", y: str, x: str, *, title: str, clock: str) -> Plot:
    """Column `y` of the evaluations over column `x`; ValueError says which there are."""
    for name in (x, y):
        if name not in evals.columns:
            raise InputError("plot", got=name, expected=f"one of {', '.join(evals.columns)}")
    figure = Plot(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(evals[x], evals[y], marker="." if len(evals) < DOTTED else "", color=BLUE)
    axes.set_xlabel(f"{clock} time" if x == "t" else x.replace("_", " "))
    axes.set_ylabel(y.replace("_", " "))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    return figure


def html(title: str, rows: Mapping[str, str], evals: "pd.DataFrame", y: str) -> str:
    """A table of these rows, beside the curve of column `y` of the evaluations over time."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    table = f"<table><caption><b>{escape(title)}</b></caption>{cells}</table>"
    line = "" if evals.empty else _curve(evals["t"].tolist(), evals[y].tolist(), f"{y.replace('_', ' ')} over time")
    return f'<div style="display: flex; flex-wrap: wrap; gap: 1em 2em; align-items: center">{table}{line}</div>'


def _curve(x: Sequence[float], y: Sequence[float], said: str) -> str:
    """A small line through these points; what is not finite is left out."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if isfinite(b)]
    if len(points) < 2:
        return ""
    start, wide = points[0][0], points[-1][0] - points[0][0] or 1.0
    low, high = min(b for _, b in points), max(b for _, b in points)
    tall = high - low or 1.0
    line = " ".join(f"{WIDTH * (a - start) / wide:.1f},{HEIGHT * (1 - (b - low) / tall):.1f}" for a, b in points)
    return (
        f'<figure style="margin: 0"><svg viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/></svg>'
        f"<figcaption>{escape(said)}: {low:.4g} to {high:.4g}</figcaption></figure>"
    )
