"""What results say of a claim: whether one number is better than another beyond the noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    """By how much one number is better than another: the mean and its 95 % interval.

    A difference, or, `ratio`, how many times as much the worse one takes. `low` and `high` are equal where nothing is
    random, and both infinite where one of the two reached the target in no run.
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
        """What an advantage is over."""
        return 1.0 if self.ratio else 0.0

    @property
    def holds(self) -> bool:
        return self.low > self.least

    @property
    def reversed(self) -> bool:
        return self.high < self.least

    @property
    def text(self) -> str:
        """Both numbers, the advantage and its interval."""
        a, b = (f"{value:.4g}" if math.isfinite(value) else "not reached" for value in self.means)
        told = f"{self.names[0]} {a}, {self.names[1]} {b}"
        if not all(map(math.isfinite, (self.mean, self.low, self.high))):
            return told
        form = "{:.2f}×" if self.ratio else "{:+.2f}"
        interval = "" if self.low == self.high else f" ({form.format(self.low)} to {form.format(self.high)})"
        return f"{told}: {form.format(self.mean)}{interval}"


def advantage(where: str, names: tuple[str, str], better: Line, worse: Line, *, less: bool, ratio: bool) -> Advantage:
    """Of one line over another, where `less` or more is better; paired by seeds where both lines have them.

    Runs of one seed have the same data, split and first model, so that what they share is no noise between them.
    """
    ratio = ratio and min(better.mean, worse.mean) > 0
    a, b = (worse, better) if less else (better, worse)
    ends = _interval(a, b, ratio=ratio)
    return Advantage(where, names, (better.mean, worse.mean), *ends, ratio, min(better.n, worse.n))


def _interval(a: Line, b: Line, *, ratio: bool) -> tuple[float, float, float]:
    """Mean, low and high of a - b, or of a / b."""
    if not (math.isfinite(a.mean) and math.isfinite(b.mean)):
        return _reached(a, b)
    paired = len(a.by_seed) == len(b.by_seed) > 1 and np.isfinite([*a.by_seed, *b.by_seed]).all()
    if paired:
        x, y = np.array(a.by_seed), np.array(b.by_seed)
        gaps = np.log(x / y) if ratio else x - y
        middle, half = float(gaps.mean()), _half(float(gaps.std(ddof=1)), len(gaps), len(gaps) - 1)
    else:
        middle, half = _welch(a, b, ratio=ratio)
    if math.isnan(half):
        return (math.exp(middle) if ratio else middle, -math.inf, math.inf)
    ends = (middle, middle - half, middle + half)
    return (math.exp(ends[0]), math.exp(ends[1]), math.exp(ends[2])) if ratio else ends


def _reached(a: Line, b: Line) -> tuple[float, float, float]:
    """Where a target was not always reached, an order is clear only if one always reached it and the other never."""
    never = [all(math.isinf(value) for value in line.by_seed or (line.mean,)) for line in (a, b)]
    always = [math.isfinite(line.mean) for line in (a, b)]
    if never[0] and always[1]:
        return math.inf, math.inf, math.inf
    if always[0] and never[1]:
        return -math.inf, -math.inf, -math.inf
    return math.nan, -math.inf, math.inf


def _welch(a: Line, b: Line, *, ratio: bool) -> tuple[float, float]:
    """Middle and half width of Welch's interval, of logarithms by the delta method; NaN where there is none."""
    middle = math.log(a.mean / b.mean) if ratio else a.mean - b.mean
    if min(a.n, b.n) < 2:
        return middle, 0.0 if a.n == b.n == 1 else math.nan
    if a.half_width is None or b.half_width is None:
        return middle, math.nan
    errors = [standard_error(half, line.n) for line, half in ((a, a.half_width), (b, b.half_width))]
    if ratio:
        errors = [error / line.mean for error, line in zip(errors, (a, b), strict=True)]
    variances = [error**2 for error in errors]
    if not sum(variances):
        return middle, 0.0
    freedom = sum(variances) ** 2 / sum(v**2 / (line.n - 1) for v, line in zip(variances, (a, b), strict=True))
    return middle, float(stats.t.ppf(1 - LEVEL / 2, freedom) * math.sqrt(sum(variances)))


def _half(deviation: float, n: int, freedom: int) -> float:
    return float(stats.t.ppf(1 - LEVEL / 2, freedom) * deviation / math.sqrt(n))


def verdict(found: Sequence[Advantage]) -> str:
    """Of a claim, from all that was compared for it."""
    if not found:
        return NOT_RUN
    holding = [each for each in found if each.holds]
    if len(holding) == len(found):
        return REPRODUCED
    if holding:
        return ONLY
    return OTHER_WAY if any(each.reversed for each in found) else NOISE
