"""Reduction of curves to fewer points, and conversion of numbers to JSON."""

from itertools import pairwise
from math import isfinite

import numpy as np
import numpy.typing as npt

from fedraa.messages import Floats

Indices = npt.NDArray[np.int64]

# A curve has at most this number of points. A plot is about 600 pixels wide, so more points would not be visible.
POINTS = 600
# The significant digits of the values in a plot.
DIGITS = 7


def visible_range(x: Floats, low: float, high: float) -> slice:
    """Return the range of indices of `x` that are needed to plot a curve from `low` to `high`.

    One more point on each side continues the line to the borders of the plot.

    Args:
        x: Ascending values.
        low: The lowest visible value.
        high: The highest visible value.
    """
    first, last = np.searchsorted(x, low, "left"), np.searchsorted(x, high, "right")
    return slice(max(0, int(first) - 1), int(last) + 1)


def thin_curve(y: Floats, points: int = POINTS) -> Indices:
    """Return the indices of at most `points` points that show a curve with all its peaks.

    The curve is cut into pieces of equal length. The minimum and the maximum of each piece are selected. A value that
    is not finite is selected only if its piece has no finite value.

    Args:
        y: The values of the curve.
        points: The maximum number of selected points.
    """
    if len(y) <= points:
        return np.arange(len(y))
    # The first and the last point are always selected. Each piece adds two points, so there are points // 2 - 1 pieces.
    edges = np.linspace(0, len(y), points // 2).astype(np.int64)
    low = [first + int(np.argmin(part)) for first, part in _split_curve(np.where(np.isfinite(y), y, np.inf), edges)]
    high = [first + int(np.argmax(part)) for first, part in _split_curve(np.where(np.isfinite(y), y, -np.inf), edges)]
    return np.unique([0, *low, *high, len(y) - 1])


def _split_curve(y: Floats, edges: Indices) -> list[tuple[int, Floats]]:
    return [(int(first), y[first:last]) for first, last in pairwise(edges)]


def json_numbers(values: Floats) -> list[float | None]:
    """Return the values as a list for JSON, with None for values that are not finite."""
    return [json_number(value) for value in values.tolist()]


def json_number(value: float | None) -> float | None:
    """Return a value with `DIGITS` significant digits; None if it is not finite."""
    if value is None or not isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
