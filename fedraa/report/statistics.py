"""What several seeds say about a method: mean, confidence interval, significance."""

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = Sequence[float] | npt.NDArray[np.float64]
LEVEL = 0.05


def mean(values: Values) -> float:
    """NaN of no values."""
    return float(np.mean(values)) if len(values) else float("nan")


def ci95(values: Values) -> float | None:
    """Half the width of the 95 % confidence interval of the mean, by Student's t.

    None where there is none: below two values, or with one that is not finite.
    """
    n = len(values)
    if n < 2 or not np.isfinite(values).all():
        return None
    return float(stats.t.ppf(1 - LEVEL / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def standard_error(half: float, n: int) -> float:
    """That of the mean of n values whose `ci95` is `half`."""
    return float(half / stats.t.ppf(1 - LEVEL / 2, n - 1))


def welch(a: Values, b: Values) -> float | None:
    """p of Welch's t-test, two-sided; None where it says nothing: too few values, or no spread at all."""
    if min(len(a), len(b)) < 2 or not np.isfinite([*a, *b]).all() or np.ptp(a) == np.ptp(b) == 0:
        return None
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # one of the two may not differ at all
        return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def welch_of(a: tuple[float, float | None, int], b: tuple[float, float | None, int]) -> float | None:
    """`welch` of values of which only (mean, `ci95`, how many) are known."""
    told = []
    for middle, half, n in (a, b):
        if n < 2 or half is None or not np.isfinite([middle, half]).all():
            return None
        told += [middle, standard_error(half, n) * np.sqrt(n), n]
    return None if told[1] == told[4] == 0 else float(stats.ttest_ind_from_stats(*told, equal_var=False).pvalue)


def significant(p: float | None) -> bool:
    return p is not None and p < LEVEL
