"""Checks of numbers and float32 arrays: their type, shape and largest value, and NaN."""

import numpy as np
import numpy.typing as npt

from fedraa.messages import Vector
from fedraa.vectors.chunked import map_chunks

# Clients and server components must not produce a larger absolute value.
LARGEST = 1e12


def is_finite(number: object) -> bool:
    """Return True for a number that is neither infinite nor NaN."""
    return isinstance(number, int | float | np.integer | np.floating) and bool(np.isfinite(number))


def describe_unfit(largest: float) -> str | None:
    """Return the problem of an array with this largest absolute value, or None. The value may be NaN."""
    if not np.isfinite(largest):
        return "values that are not finite"
    if largest > LARGEST:
        return f"values up to {largest:.4g}"
    return None


def wrong_kind(buffer: object, shape: tuple[int, ...] | None) -> str | None:
    """Return a problem if an array is not float32 of this shape, otherwise None. `shape` None allows every shape."""
    if not isinstance(buffer, np.ndarray) or buffer.dtype != np.float32:
        return f"are {getattr(buffer, 'dtype', type(buffer).__name__)}, not float32"
    if shape is not None and buffer.shape != shape:
        return f"have the shape {buffer.shape}, not {shape}"
    return None


def find_largest(buffer: npt.NDArray[np.float32]) -> float:
    """Return the largest absolute value, or NaN if a value is NaN.

    This function creates no temporary array.
    """
    flat = buffer.reshape(-1)

    def find_extremes(piece: slice) -> tuple[float, float]:
        values = flat[piece]
        return float(np.maximum.reduce(values)), -float(np.minimum.reduce(values))

    parts = map_chunks(flat.size, find_extremes)
    if not parts:
        return 0.0
    return abs(float(np.max(parts)))


def at_most(params: Vector, bound: float) -> bool:
    """Return True if the Euclidean norm is at most `bound`.

    Then no absolute value is above `bound`. The norm takes half the time of a search for the largest value.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(params @ params <= bound * bound)


def count_not_finite(buffer: npt.NDArray[np.float32], largest: float) -> int:
    """Return the number of infinite and NaN values. Pass `find_largest(buffer)` as `largest`."""
    if np.isfinite(largest):
        return 0
    return int(np.count_nonzero(~np.isfinite(buffer)))
