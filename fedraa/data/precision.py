"""Warnings about values that become equal when they are rounded to float32."""

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import RunWarning

Array = npt.NDArray[Any]

MAX_ROWS = 8192
MAX_VALUES = 2**24
MIN_ROWS = 16
"""Minimum number of rows that are checked, even if they contain more than `MAX_VALUES` values."""
MAX_ERROR = 1e-2
"""A warning appears if (std of the rounding errors) / (std of the values) is above this ratio."""
NOISE = 1e-14
"""Values with a smaller ratio of standard deviation to largest value differ only by rounding errors in float64."""


def warn_lost_digits(name: str, x: Array) -> None:
    """Warn if float32 cannot distinguish the values of a channel (dimension 1) of x.

    The function checks about `MAX_ROWS` evenly spaced rows.

    Args:
        name: The name of x in the warning.
        x: The values before the conversion to float32.
    """
    may_lose = (x.dtype.kind == "f" and x.dtype.itemsize >= 8) or (x.dtype.kind in "iu" and x.dtype.itemsize >= 4)
    if not may_lose or not x.ndim or not x.size:
        return
    limit = min(MAX_ROWS, max(MIN_ROWS, MAX_VALUES * len(x) // x.size))
    sample = x[:: math.ceil(len(x) / limit)]
    exact = sample.astype(np.promote_types(sample.dtype, np.float64))
    exact = np.moveaxis(exact, 1, -1).reshape(-1, x.shape[1]) if x.ndim > 1 else exact[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        finite = np.isfinite(rounded)
        deviation, error = _column_deviation(exact, finite), _column_deviation(exact - rounded, finite)
    floor: Any = 0
    if x.dtype.kind == "f":
        floor = NOISE * np.abs(exact).max(axis=0, where=finite, initial=0)
    lossy = np.flatnonzero((deviation > floor) & (error > MAX_ERROR * deviation))
    if lossy.size:
        channel = int(lossy[0])
        kept = finite[:, channel]
        subjects = {1: name, 2: f"{name}: feature {channel}"}
        subject = subjects.get(x.ndim, f"{name}: channel {channel}")
        loss = _describe_loss(exact[kept, channel], rounded[kept, channel])
        if lossy.size > 1:
            loss += f" (and so do {lossy.size - 1} others)"
        warnings.warn(f"{subject} {loss}", RunWarning, stacklevel=2)


def _column_deviation(values: Array, counted: Array) -> Array:
    """Return the standard deviation of each column over the values for which the mask `counted` is True."""
    count = np.maximum(counted.sum(axis=0), 1)
    mean = np.where(counted, values, 0).sum(axis=0) / count
    deviation: Array = np.sqrt(np.square(np.where(counted, values - mean, 0)).sum(axis=0) / count)
    return deviation


def _describe_loss(exact: Array, rounded: Array) -> str:
    """Return a text about how rounding to float32 changes the values of a channel."""
    mean = float(exact.mean())
    spread = float(np.ptp(exact))
    remedy = "subtract its mean or first value" if abs(mean) > spread else "multiply it by a large number"
    return (
        f"has values near {mean:.2g} that differ by {spread:.3g}, but float32 keeps only {len(np.unique(rounded))} of "
        f"{len(np.unique(exact))} different values; {remedy}"
    )
