"""The verdict on a claim that one number is better than another, by a significance test.

All pages with results of studies use this test.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.studies.results import Line
from benchmarks.studies.weak import AT_CHANCE, NOT_REACHED, SATURATED
from fedraa.report.statistics import LEVEL, standard_error

REPRODUCED = "reproduced"
ONLY = "only in some settings"
OTHER_WAY = "the other way round"
NOISE = "within the noise"
CANNOT_TELL = "cannot tell"
CANNOT_TELL_SATURATED = f"{CANNOT_TELL} ({SATURATED})"
CANNOT_TELL_AT_CHANCE = f"{CANNOT_TELL} ({AT_CHANCE})"
CANNOT_TELL_NOT_REACHED = f"{CANNOT_TELL} ({NOT_REACHED})"
TOO_FEW_SEEDS = "too few seeds"
CANNOT_TELL_TOO_FEW = f"{CANNOT_TELL} ({TOO_FEW_SEEDS})"
NOT_RUN = "not yet run"
VERDICTS = (
    REPRODUCED,
    ONLY,
    OTHER_WAY,
    NOISE,
    CANNOT_TELL_TOO_FEW,
    CANNOT_TELL_SATURATED,
    CANNOT_TELL_AT_CHANCE,
    CANNOT_TELL_NOT_REACHED,
    NOT_RUN,
)
# If a paper gives no numbers, the claimed advantage is assumed to be RESOLVED_POINTS percentage points, or the ratio
# RESOLVED_RATIO.
RESOLVED_POINTS, RESOLVED_RATIO = 4.0, 1.44
# `Advantage.seeds_to_decide` searches up to this number.
MAX_SEEDS = 1_000_000


@dataclass(frozen=True)
class Advantage:
    """The advantage of one number over another, as a difference or a ratio, with its 95 % interval.

    `low` equals `high` if the advantage is the same for every seed, or if there is only one seed. Both are infinite if
    all seeds of one row reached the target and no seed of the other row did.

    Attributes:
        where: The size of the study and the column of the numbers.
        names: The names of the rows. According to the claim, the first is better.
        means: The means of both rows.
        mean: The advantage.
        low: The low end of the interval.
        high: The high end of the interval.
        ratio: True if the advantage is a ratio.
        n: The number of seeds.
        p: The two-sided p-value of the test; NaN without a test.
        weak: The reason why the numbers can hardly differ: `saturated`, `at chance` or `target not reached`. Otherwise
            empty.
        coarse: The result of `is_coarse`: True if there are too few seeds to decide.
        enough_seeds: The result of `seeds_to_decide` if `coarse` is True; None if it is unknown.
        paper: The advantage in the paper; NaN if the paper does not have both numbers.
    """

    where: str
    names: tuple[str, str]
    means: tuple[float, float]
    mean: float
    low: float
    high: float
    ratio: bool
    n: int
    p: float = math.nan
    weak: str = ""
    coarse: bool = False
    enough_seeds: int | None = None
    paper: float = math.nan

    @property
    def equality(self) -> float:
        """The value that means equality: 1 for a ratio, 0 for a difference."""
        return float(self.ratio)

    @property
    def holds(self) -> bool:
        return self.low > self.equality

    @property
    def reversed(self) -> bool:
        return self.high < self.equality

    @property
    def decides(self) -> bool:
        """True if the interval excludes `equality`, the value 0 for a difference and 1 for a ratio."""
        return self.holds or self.reversed

    def is_coarse(self, *, percent: bool) -> bool:
        """Return True if the interval contains 0 (1 for a ratio) and is too wide to decide a claim.

        It is too wide if its width exceeds half of the paper's advantage. If the paper has no numbers, the advantage is
        assumed: `RESOLVED_POINTS` for percentages, `RESOLVED_RATIO` for ratios, and 0 for other units.
        """
        if self.decides or self.low == self.high:
            return False
        return self._width > self._narrow_width(percent=percent)

    def seeds_to_decide(self, *, percent: bool) -> int | None:
        """Return the number of seeds with which the interval would not be too wide, if the variance stays the same.

        The result is None if it is unknown: the interval has no ends, or no width is narrow enough.
        """
        narrow = self._narrow_width(percent=percent)
        if self.n < 2 or not narrow or not math.isfinite(self._width):
            return None
        spread = self._width / _width_of_seeds(self.n)
        seeds = range(2, MAX_SEEDS)
        return seeds[0] + bisect_left(seeds, True, key=lambda n: spread * _width_of_seeds(n) <= narrow)

    @property
    def _width(self) -> float:
        """The width of the interval, for a ratio on the scale of logarithms."""
        if not all(map(math.isfinite, (self.low, self.high))) or (self.ratio and self.low <= 0):
            return math.inf
        if self.ratio:
            return math.log(self.high / self.low)
        return self.high - self.low

    def _narrow_width(self, *, percent: bool) -> float:
        """Return the width that decides a claim: half of the paper's advantage, for a ratio of its logarithm."""
        paper = self.paper
        if self.ratio:
            return abs(math.log(RESOLVED_RATIO if math.isnan(paper) else paper)) / 2
        if math.isnan(paper):
            paper = RESOLVED_POINTS if percent else 0.0
        return abs(paper) / 2

    @property
    def p_of_claim(self) -> float:
        """The p-value of the claim that the first row is better. It is 1 if the first row is not better."""
        if math.isnan(self.p):
            return 1.0 - float(self.holds)
        if self.mean > self.equality:
            return self.p
        return 1.0

    @property
    def text(self) -> str:
        """A text with the names and means of both rows, the advantage and its interval."""
        a, b = map(_number_text, self.means)
        numbers = f"{self.names[0]} {a}, {self.names[1]} {b}"
        if not all(map(math.isfinite, (self.mean, self.low, self.high))):
            return numbers
        form = "{:.2f}×" if self.ratio else "{:+.2f}"
        if self.low == self.high:
            return f"{numbers}: {form.format(self.mean)}"
        return f"{numbers}: {form.format(self.mean)} ({form.format(self.low)} to {form.format(self.high)})"


def _width_of_seeds(n: int) -> float:
    """Return the width of the 95 % interval of a mean of `n` values, divided by their standard deviation."""
    return float(2 * stats.t.ppf(1 - LEVEL / 2, n - 1)) / math.sqrt(n)


def _number_text(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not reached"


def measure_advantage(
    where: str, names: tuple[str, str], better: Line, worse: Line, *, less: bool, ratio: bool
) -> Advantage:
    """Return the advantage of one number over another.

    If both numbers have values by seed, a paired test is used, because runs with the same seed share the data and the
    initial model.

    Args:
        where: The size of the study and the column of the numbers.
        names: The rows of the numbers.
        better: The number that is better according to the claim.
        worse: The other number.
        less: True if smaller numbers are better.
        ratio: True to compare by a ratio; ignored if a mean is not positive.
    """
    larger, smaller = (worse, better) if less else (better, worse)
    paper = _paper_advantage(larger.paper, smaller.paper, ratio=ratio)
    if ratio and min(better.mean, worse.mean) <= 0:
        ratio, paper = False, math.nan
    mean, low, high, p = _compare_lines(larger, smaller, ratio=ratio)
    n = min(better.n, worse.n)
    return Advantage(where, names, (better.mean, worse.mean), mean, low, high, ratio, n, p, paper=paper)


def _paper_advantage(a: float, b: float, *, ratio: bool) -> float:
    """Return a - b, or a / b if `ratio`; NaN if a or b is NaN."""
    if not ratio:
        return a - b
    if not b:
        return math.nan
    return a / b


def paired_p_value(a: Sequence[float], b: Sequence[float], *, ratio: bool = False) -> float | None:
    """Return the two-sided p-value of Student's paired t-test, or None if it is undefined.

    Seeds with a missing value are ignored.

    Args:
        a: One value per seed.
        b: The other values of the same seeds.
        ratio: True to test the logarithms of the values.
    """
    x, y = np.array(a, np.float64), np.array(b, np.float64)
    if len(x) != len(y):
        return None
    known = ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    if len(x) < 2 or not np.isfinite([x, y]).all():
        return None
    p = _paired_test(x, y, ratio=ratio and min(x.min(), y.min()) > 0)[2]
    return None if math.isnan(p) else p


def _compare_lines(a: Line, b: Line, *, ratio: bool) -> tuple[float, float, float, float]:
    """Return the mean of a - b (or a / b), the low and high end of its interval, and its p-value."""
    if not (math.isfinite(a.mean) and math.isfinite(b.mean)):
        return _compare_reached(a, b)
    paired = len(a.by_seed) == len(b.by_seed) > 1 and np.isfinite([*a.by_seed, *b.by_seed]).all()
    if paired:
        middle, half, p = _paired_test(np.array(a.by_seed), np.array(b.by_seed), ratio=ratio)
    else:
        middle, half, p = _welch_test(a, b, ratio=ratio)
    scale = math.exp if ratio else float
    if math.isnan(half):
        return scale(middle), -math.inf, math.inf, p
    return scale(middle), scale(middle - half), scale(middle + half), p


def _paired_test(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], *, ratio: bool) -> tuple[float, float, float]:
    """Return the mean, half of the width of its interval, and the p-value of Student's paired test.

    The mean is that of the differences x - y or, if `ratio` is True, of the logarithms of x / y.
    """
    gaps = np.log(x / y) if ratio else x - y
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    return _student(float(gaps.mean()), error, len(gaps) - 1)


def _student(middle: float, error: float, freedom: float) -> tuple[float, float, float]:
    """Return an estimate, half of the width of its confidence interval, and its p-value.

    The null hypothesis is that the true value is 0. If the standard error is 0, the p-value is 0, or NaN if the
    estimate is also 0.

    Args:
        middle: The estimate.
        error: The standard error of the estimate.
        freedom: The degrees of freedom.
    """
    if not error:
        return middle, 0.0, 0.0 if middle else math.nan
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    return middle, half, float(2 * stats.t.sf(abs(middle) / error, freedom))


def never_reached(line: Line) -> bool:
    """Return True if no seed reached the target of this metric."""
    return all(math.isinf(value) for value in line.by_seed or (line.mean,))


def _compare_reached(a: Line, b: Line) -> tuple[float, float, float, float]:
    """Compare times to a target that some runs missed. Return the advantage, the ends of its interval and its p-value.

    If all seeds of one row reached the target and no seed of the other row did, the advantage is infinite, and the
    p-value is from Fisher's exact test. Otherwise the advantage is unknown (NaN).
    """
    never = [never_reached(line) for line in (a, b)]
    always = [math.isfinite(line.mean) for line in (a, b)]
    p = min(1.0, 2 / math.comb(a.n + b.n, a.n))
    if never[0] and always[1]:
        return math.inf, math.inf, math.inf, p
    if always[0] and never[1]:
        return -math.inf, -math.inf, -math.inf, p
    return math.nan, -math.inf, math.inf, 1.0


def _welch_test(a: Line, b: Line, *, ratio: bool) -> tuple[float, float, float]:
    """Return the difference of the means, half of the width of its interval, and the p-value of Welch's test.

    If `ratio` is True, the logarithms of the means are compared (delta method). If a variance is unknown, the width and
    the p-value are NaN.
    """
    middle = math.log(a.mean / b.mean) if ratio else a.mean - b.mean
    if a.n == b.n == 1:
        return middle, 0.0, 0.0 if middle else math.nan
    if min(a.n, b.n) < 2 or a.half_width is None or b.half_width is None:
        return middle, math.nan, math.nan
    errors = [standard_error(half, line.n) for line, half in ((a, a.half_width), (b, b.half_width))]
    if ratio:
        errors = [error / line.mean for error, line in zip(errors, (a, b), strict=True)]
    variances = [error**2 for error in errors]
    if not sum(variances):
        return middle, 0.0, 0.0 if middle else math.nan
    freedom = sum(variances) ** 2 / sum(v**2 / (line.n - 1) for v, line in zip(variances, (a, b), strict=True))
    return _student(middle, math.sqrt(sum(variances)), freedom)


def exclude_weak(comparisons: Sequence[Advantage]) -> list[Advantage]:
    """Return the comparisons that can confirm or contradict a claim.

    Weak comparisons are omitted, because their numbers can hardly differ (see `Advantage.weak`). There is one
    exception: if the interval of a weak comparison does not contain 0 (1 for a ratio), all weak comparisons of the same
    column stay. If only this comparison stayed, the result would decide which comparisons count.
    """
    differing = {comparison.where for comparison in comparisons if comparison.weak and comparison.decides}
    return [comparison for comparison in comparisons if not comparison.weak or comparison.where in differing]


def decide_verdict(comparisons: Sequence[Advantage]) -> str:
    """Return the verdict on a claim from all comparisons that test the claim.

    Weak comparisons are omitted, because their numbers can hardly differ (see `exclude_weak`). If all comparisons are
    weak, the verdict says why, such as "cannot tell (saturated)". A comparison with too few seeds does not
    confirm the claim.
    """
    if not comparisons:
        return NOT_RUN
    strong = exclude_weak(comparisons)
    if not strong:
        reasons = {comparison.weak for comparison in comparisons}
        if SATURATED in reasons:
            return CANNOT_TELL_SATURATED
        return CANNOT_TELL_AT_CHANCE if AT_CHANCE in reasons else CANNOT_TELL_NOT_REACHED
    holding = sum(comparison.holds for comparison in strong)
    if holding == len(strong):
        return REPRODUCED
    if holding:
        return ONLY
    if any(comparison.reversed for comparison in strong):
        return OTHER_WAY
    if all(comparison.coarse for comparison in strong):
        return CANNOT_TELL_TOO_FEW
    return NOISE


def p_of_claim(comparisons: Sequence[Advantage]) -> float | None:
    """Return the largest p-value of the comparisons, because a claim holds only if all its comparisons hold.

    Weak comparisons are omitted (see `exclude_weak`).
    """
    return max((comparison.p_of_claim for comparison in exclude_weak(comparisons)), default=None)


def adjust_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values of several claims after Holm's correction. None stays None.

    The k-th smallest of m values (k from 0) is multiplied by m - k. Products above 1 become 1. If a product is smaller
    than the result of a smaller p-value, that result replaces it.
    """
    known = {number: p for number, p in enumerate(p_values) if p is not None}
    order = sorted(known, key=known.__getitem__)
    scaled = [min(1.0, (len(order) - k) * known[number]) for k, number in enumerate(order)]
    adjusted = dict(zip(order, accumulate(scaled, max), strict=True))
    return [adjusted.get(number) for number in range(len(p_values))]
