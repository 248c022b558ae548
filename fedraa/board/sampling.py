"""Reduction of curves to fewer points, and the conversion of numbers to JSON."""

from itertools import pairwise
from math import isfinite

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

# Points of a curve, about the number of pixels of a plot.
POINTS = 600
# Significant digits of a number in a plot.
DIGITS = 7


def visible_range(x: Floats, low: float, high: float) -> slice:
    """Return the points of ascending `x` from `low` to `high`, and one more on either side to continue the line.

    Args:
        x: Ascending values.
        low: The lowest value of the window.
        high: The highest value of the window.
    """
    first, last = np.searchsorted(x, low, "left"), np.searchsorted(x, high, "right")
    return slice(max(0, int(first) - 1), int(last) + 1)


def thin_curve(y: Floats, points: int = POINTS) -> Places:
    """Return the indices of `points` or fewer points of a curve.

    The curve is cut into pieces, and each piece keeps its minimum and its maximum. Every peak is therefore kept. Values
    that are not finite are kept only if a piece has no other value.
    """
    if len(y) <= points:
        return np.arange(len(y))
    # The first and the last point are always kept.
    edges = np.linspace(0, len(y), points // 2).astype(np.int64)
    low = [first + int(np.argmin(part)) for first, part in _split_curve(np.where(np.isfinite(y), y, np.inf), edges)]
    high = [first + int(np.argmax(part)) for first, part in _split_curve(np.where(np.isfinite(y), y, -np.inf), edges)]
    return np.unique([0, *low, *high, len(y) - 1])


def _split_curve(y: Floats, edges: Places) -> list[tuple[int, Floats]]:
    return [(int(first), y[first:last]) for first, last in pairwise(edges)]


def json_numbers(values: Floats) -> list[float | None]:
    """Return a JSON list, with None for values that are not finite."""
    return [json_number(value) for value in values.tolist()]


def json_number(value: float | None) -> float | None:
    """Return a value with `DIGITS` significant digits; None if it is not finite, because JSON has no such number."""
    if value is None or not isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
