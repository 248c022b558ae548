"""The verdict on a claim from results: is one number better than another beyond the noise?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.studies.results import Line
from fedraa.report.statistics import LEVEL, standard_error

REPRODUCED = "reproduced"
ONLY = "only where"
OTHER_WAY = "not: the other way round"
NOISE = "not: within the noise"
NOT_RUN = "not yet run"
VERDICTS = (REPRODUCED, ONLY, NOISE, OTHER_WAY, NOT_RUN)


@dataclass(frozen=True)
class Advantage:
    """The advantage of one number over another, with its 95 % interval: a difference or, with `ratio`, a ratio.

    `low` and `high` are equal if nothing is random. Both are infinite if one of the two never reached the target.
    """

    where: str
    names: tuple[str, str]
    means: tuple[float, float]
    mean: float
    low: float
    high: float
    ratio: bool
    n: int

    @property
    def least(self) -> float:
        """The value that means no advantage: 1 for a ratio, 0 for a difference."""
        return float(self.ratio)

    @property
    def holds(self) -> bool:
        return self.low > self.least

    @property
    def reversed(self) -> bool:
        return self.high < self.least

    @property
    def text(self) -> str:
        """The text with both numbers, the advantage and its interval."""
        a, b = map(_number_text, self.means)
        numbers = f"{self.names[0]} {a}, {self.names[1]} {b}"
        if not all(map(math.isfinite, (self.mean, self.low, self.high))):
            return numbers
        form = "{:.2f}×" if self.ratio else "{:+.2f}"
        if self.low == self.high:
            return f"{numbers}: {form.format(self.mean)}"
        return f"{numbers}: {form.format(self.mean)} ({form.format(self.low)} to {form.format(self.high)})"


def _number_text(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not reached"


def measure_advantage(
    where: str, names: tuple[str, str], better: Line, worse: Line, *, less: bool, ratio: bool
) -> Advantage:
    """Return the advantage of the line `better` over `worse`. If both lines have values by seed, these are paired.

    Runs with the same seed have the same data, split and first model, so the difference of a pair has less noise.

    Args:
        where: The size and the column of the lines.
        names: The rows of both lines.
        better: The line that the claim says is better.
        worse: The other line.
        less: Smaller numbers are better.
        ratio: Compare by a ratio; ignored if a mean is not positive.
    """
    ratio = ratio and min(better.mean, worse.mean) > 0
    larger, smaller = (worse, better) if less else (better, worse)
    interval = _advantage_interval(larger, smaller, ratio=ratio)
    return Advantage(where, names, (better.mean, worse.mean), *interval, ratio, min(better.n, worse.n))


def _advantage_interval(a: Line, b: Line, *, ratio: bool) -> tuple[float, float, float]:
    """Return the mean, and the low and the high end of the interval, of a - b or of a / b."""
    if not (math.isfinite(a.mean) and math.isfinite(b.mean)):
        return _compare_reached(a, b)
    paired = len(a.by_seed) == len(b.by_seed) > 1 and np.isfinite([*a.by_seed, *b.by_seed]).all()
    if paired:
        middle, half = _paired(np.array(a.by_seed), np.array(b.by_seed), ratio=ratio)
    else:
        middle, half = _welch_interval(a, b, ratio=ratio)
    scale = math.exp if ratio else float
    if math.isnan(half):
        return scale(middle), -math.inf, math.inf
    return scale(middle), scale(middle - half), scale(middle + half)


def _paired(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], *, ratio: bool) -> tuple[float, float]:
    """Return middle and half width of Student's interval of paired differences, or of log ratios with `ratio`."""
    gaps = np.log(x / y) if ratio else x - y
    n = len(gaps)
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1) * float(gaps.std(ddof=1)) / math.sqrt(n))
    return float(gaps.mean()), half


def _compare_reached(a: Line, b: Line) -> tuple[float, float, float]:
    """Return the interval for a target that was not always reached.

    The order is clear only if one line always reached it and the other never did.
    """
    never = [all(math.isinf(value) for value in line.by_seed or (line.mean,)) for line in (a, b)]
    always = [math.isfinite(line.mean) for line in (a, b)]
    if never[0] and always[1]:
        return math.inf, math.inf, math.inf
    if always[0] and never[1]:
        return -math.inf, -math.inf, -math.inf
    return math.nan, -math.inf, math.inf


def _welch_interval(a: Line, b: Line, *, ratio: bool) -> tuple[float, float]:
    """Return middle and half width of Welch's interval, or of the log ratio (delta method) with `ratio`.

    The half width is NaN if it cannot be estimated, because a line has no spread of values.
    """
    middle = math.log(a.mean / b.mean) if ratio else a.mean - b.mean
    if a.n == b.n == 1:
        return middle, 0.0
    if min(a.n, b.n) < 2 or a.half_width is None or b.half_width is None:
        return middle, math.nan
    errors = [standard_error(half, line.n) for line, half in ((a, a.half_width), (b, b.half_width))]
    if ratio:
        errors = [error / line.mean for error, line in zip(errors, (a, b), strict=True)]
    variances = [error**2 for error in errors]
    if not sum(variances):
        return middle, 0.0
    freedom = sum(variances) ** 2 / sum(v**2 / (line.n - 1) for v, line in zip(variances, (a, b), strict=True))
    return middle, float(stats.t.ppf(1 - LEVEL / 2, freedom) * math.sqrt(sum(variances)))


def decide_verdict(comparisons: Sequence[Advantage]) -> str:
    """Return the verdict on a claim from all its comparisons."""
    if not comparisons:
        return NOT_RUN
    holding = sum(comparison.holds for comparison in comparisons)
    if holding == len(comparisons):
        return REPRODUCED
    if holding:
        return ONLY
    if any(comparison.reversed for comparison in comparisons):
        return OTHER_WAY
    return NOISE
