"""The stretch of an axis on which a race is decided: without the climb from the start, much the same for all."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
FROM = 0.5  # of its way along the axis, whence each line is shown whole
MARGIN = 0.05  # of what is shown, above and below
LEAST = 1e-3  # that is shown, as a share of the values


def late(at: Floats, values: Floats) -> Floats:
    """What a line through `values` at the ascending places `at` comes to on the second half of its way."""
    start = at[0] + FROM * (at[-1] - at[0])
    return np.append(values[at >= start], np.interp(start, at, values))


def show_decided(axes: Axes, seen: Sequence[Floats], *, shares: bool) -> None:
    """Sets the vertical axis so that all of `seen` is on it; of `shares` nothing that is not from 0 to 1."""
    values = np.concatenate(seen)
    values = values[np.isfinite(values)]
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    margin = max(MARGIN * (high - low), LEAST * max(abs(low), abs(high)), LEAST)
    bottom, top = low - margin, high + margin
    axes.set_ylim((max(0.0, bottom), min(1.0, top)) if shares else (bottom, top))
