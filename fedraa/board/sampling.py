"""Fewer points that look the same, and numbers as JSON has them."""

from itertools import pairwise
from math import isfinite

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

POINTS = 600  # of a curve: about as many as a figure has pixels
DIGITS = 7  # of a number that is drawn


def window(x: Floats, low: float, high: float) -> slice:
    """The points of ascending `x` from `low` to `high`, and one on either side, to which the curve goes on."""
    first, last = np.searchsorted(x, low, "left"), np.searchsorted(x, high, "right")
    return slice(max(0, int(first) - 1), int(last) + 1)


def thinned(y: Floats, points: int = POINTS) -> Places:
    """Which `points` or fewer of a curve to draw: of every stretch the lowest and the highest, so that no peak is lost.

    Values that are not finite are kept only where a stretch has no other.
    """
    if len(y) <= points:
        return np.arange(len(y))
    edges = np.linspace(0, len(y), points // 2).astype(np.int64)  # the first and the last are kept besides
    low = [first + int(np.argmin(part)) for first, part in _parts(np.where(np.isfinite(y), y, np.inf), edges)]
    high = [first + int(np.argmax(part)) for first, part in _parts(np.where(np.isfinite(y), y, -np.inf), edges)]
    return np.unique([0, *low, *high, len(y) - 1])


def _parts(y: Floats, edges: Places) -> list[tuple[int, Floats]]:
    return [(int(first), y[first:last]) for first, last in pairwise(edges)]


def plain(values: Floats) -> list[float | None]:
    """As JSON; None for what is not finite."""
    return [number(value) for value in values.tolist()]


def number(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if value is not None and isfinite(value) else None
