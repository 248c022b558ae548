"""Confidence intervals that stay within the values that there can be."""

import math
from collections.abc import Sequence

import numpy as np

from fedraa.report.statistics import ci95, mean


def interval(values: Sequence[float], within: tuple[float, float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean, Student's after a transform: arcsine of the root or, without an end, logarithm.

    None where there is none: below two values, or with one that is not finite.
    """
    low, high = within
    half = ci95(values)
    if half is None or half == 0:
        return None if half is None else (mean(values), mean(values))
    x = np.array(values)
    if math.isinf(high):
        if math.isinf(low) or (x <= low).any():
            return max(low, mean(values) - half), mean(values) + half
        middle, half = mean(np.log(x - low)), ci95(np.log(x - low)) or 0.0
        return low + math.exp(middle - half), low + math.exp(middle + half)
    angle = np.arcsin(np.sqrt((x - low) / (high - low)))
    middle, half = mean(angle), ci95(angle) or 0.0
    ends = (max(0.0, middle - half), min(math.pi / 2, middle + half))
    return low + (high - low) * math.sin(ends[0]) ** 2, low + (high - low) * math.sin(ends[1]) ** 2
