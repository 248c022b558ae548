"""Confidence intervals that stay within the possible values of a metric."""

import math
from collections.abc import Sequence

import numpy as np

from fedraa.report.statistics import half_width95, mean_or_nan


def bounded_interval(values: Sequence[float], within: tuple[float, float]) -> tuple[float, float] | None:
    """Return the mean's 95 % confidence interval; None for fewer than two values or an infinite value.

    The interval is computed for transformed values and then transformed back. The transformation is arcsin(sqrt(x)) if
    the metric has a largest value. Otherwise it is the logarithm.

    Args:
        values: The values of the metric, one per seed.
        within: The smallest and the largest possible value of the metric.
    """
    low, high = within
    half = half_width95(values)
    if half is None:
        return None
    if half == 0:
        return mean_or_nan(values), mean_or_nan(values)
    x = np.array(values)
    if math.isinf(high):
        if math.isinf(low) or (x <= low).any():
            return max(low, mean_or_nan(values) - half), mean_or_nan(values) + half
        logarithms = np.log(x - low)
        middle = mean_or_nan(logarithms)
        half = half_width95(logarithms) or 0.0
        return low + math.exp(middle - half), low + math.exp(middle + half)
    angle = np.arcsin(np.sqrt((x - low) / (high - low)))
    middle = mean_or_nan(angle)
    half = half_width95(angle) or 0.0
    ends = (max(0.0, middle - half), min(math.pi / 2, middle + half))
    return low + (high - low) * math.sin(ends[0]) ** 2, low + (high - low) * math.sin(ends[1]) ** 2
