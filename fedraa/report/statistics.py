"""Mean, 95 % confidence interval and significance of a metric over several seeds."""

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedraa.objectives.metric_spec import Bounds

Values = Sequence[float] | npt.NDArray[np.float64]
LEVEL = 0.05


def mean_or_nan(values: Values) -> float:
    """Return the mean; NaN without values."""
    if len(values) == 0:
        return math.nan
    return float(np.mean(values))


def mean_count_text(mean: float) -> str:
    """Return the mean of counts with at most one decimal, such as `496.5` or `20000`."""
    return f"{round(mean, 1):.15g}"


def half_width95(values: Values) -> float | None:
    """Return half of the width of the mean's 95 % confidence interval (Student's t).

    Returns None for fewer than two values, or if a value is not finite.
    """
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    return float(stats.t.ppf(1 - LEVEL / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def confidence_interval(values: Values, bounds: Bounds) -> tuple[float, float] | None:
    """Return the mean's 95 % confidence interval, clipped to `bounds`.

    Returns None for fewer than two values, or if a value is not finite.
    """
    half = half_width95(values)
    if half is None:
        return None
    return max(bounds[0], mean_or_nan(values) - half), min(bounds[1], mean_or_nan(values) + half)


def estimate_text(values: Values, form: Callable[[float], str], bounds: Bounds) -> str:
    """Return the mean and its 95 % confidence interval as text, such as `0.91 [0.88, 0.93]`.

    The text is only the mean if the interval is not defined.

    Args:
        values: The values.
        form: A function that formats a number.
        bounds: The possible values, to which the interval is clipped.
    """
    ends = confidence_interval(values, bounds)
    # The interval of equal values can have a tiny width, because their mean is rounded.
    if ends is None or np.ptp(values) == 0:
        return form(mean_or_nan(values))
    return f"{form(mean_or_nan(values))} [{form(ends[0])}, {form(ends[1])}]"


def standard_error(half: float, n: int) -> float:
    """Return the standard error of the mean of n values.

    Args:
        half: Half of the width of the mean's 95 % interval.
        n: The number of values.
    """
    return float(half / stats.t.ppf(1 - LEVEL / 2, n - 1))


def welch_p_value(a: Values, b: Values) -> float | None:
    """Return the two-sided p-value of Welch's t-test.

    Returns None for too few values or if all values are equal.
    """
    if min(len(a), len(b)) < 2 or not np.isfinite([*a, *b]).all() or np.ptp(a) == np.ptp(b) == 0:
        return None
    # SciPy warns if all values of a group are equal, which is no error.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def is_significant(p: float | None) -> bool:
    """Return True if p is known and below the level of significance."""
    return p is not None and p < LEVEL
