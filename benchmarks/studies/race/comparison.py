"""A comparison of Fed-Quilt, with its default values, to the best other method, with tuned values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.studies.race.entrants import LENT_TO, LIMIT, OURS
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.race.table import group_by_entrant
from benchmarks.studies.verdict import paired_p_value
from fedraa.report.statistics import half_width95, mean_or_nan

WITHIN_NOISE = "within the noise"
# A final accuracy that is lower by at most this much is close to the best.
CLOSE = 0.005


class Ending(NamedTuple):
    """The end of a method's long runs.

    Attributes:
        accuracy: The mean accuracy over the runs.
        time: The duration of a run.
    """

    accuracy: float
    time: float


@dataclass(frozen=True)
class Comparison:
    """The times in which Fed-Quilt (not tuned) and the best other method (tuned) reach the last target of a setting.

    Attributes:
        setting: The setting.
        rival: The name of the best other method.
        our_times: Fed-Quilt's time to the last target by seed; infinite if a run did not reach it.
        rival_times: The rival's time to the last target by seed.
        endings: The ends of the long runs of each method.
    """

    setting: Setting
    rival: str
    our_times: Mapping[int, float]
    rival_times: Mapping[int, float]
    endings: Mapping[str, Ending]

    @property
    def log_ratios(self) -> list[float]:
        """The logarithms of rival time / our time, one per common seed.

        A run that missed the target counts with the time limit of the setting (`horizon`).
        """
        seeds = sorted(self.our_times.keys() & self.rival_times.keys())
        return [math.log(self._bounded(self.rival_times[seed]) / self._bounded(self.our_times[seed])) for seed in seeds]

    def _bounded(self, time: float) -> float:
        return min(time, self.setting.horizon)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the geometric mean of (rival time / our time); None for fewer than two seeds."""
        half = half_width95(self.log_ratios)
        if half is None:
            return None
        middle = mean_or_nan(self.log_ratios)
        return math.exp(middle - half), math.exp(middle + half)

    @property
    def best_ending(self) -> str | None:
        """The other method with the highest final accuracy; None if it or Fed-Quilt has no long runs."""
        others = {name: ending.accuracy for name, ending in self.endings.items() if name not in (OURS, *LENT_TO)}
        return max(others, key=others.__getitem__) if others and OURS in self.endings else None

    @property
    def ends_close(self) -> bool:
        """True if Fed-Quilt's final accuracy is at most CLOSE below that of `best_ending`."""
        best = self.best_ending
        return best is not None and self.endings[OURS].accuracy >= self.endings[best].accuracy - CLOSE

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of the paired test that both methods need the same time; None if it is undefined."""
        return paired_p_value(self.log_ratios, [0.0] * len(self.log_ratios))

    @property
    def faster(self) -> str:
        """The name of the faster method, or WITHIN_NOISE if `interval` contains 1, the ratio of equal times.

        A run that missed the target counts with too short a time, so a method with such a run is never the faster one.
        """
        if self.interval is None or self.interval[0] <= 1 <= self.interval[1]:
            return WITHIN_NOISE
        name, times = self.rival, self.rival_times
        if self.interval[0] > 1:
            name, times = OURS, self.our_times
        return WITHIN_NOISE if any(map(math.isinf, times.values())) else name


def compare_defaults(setting: Setting, runs: Sequence[Measured]) -> Comparison | None:
    """Compare Fed-Quilt's untuned runs with the tuned runs of the best other method. `runs` has the runs of all parts.

    The best other method is chosen by the seeds that all other methods have. If more seeds counted for some methods,
    these methods would more often miss the target. Returns None if Fed-Quilt or all other methods have no runs.
    """
    ours = group_by_entrant(runs, "untuned").get(OURS)
    tuned = group_by_entrant(runs, "tuned")
    rivals = {name: of_name for name, of_name in tuned.items() if name not in (OURS, LIMIT, *LENT_TO)}
    if not ours or not rivals:
        return None
    common = set.intersection(*({run.seed for run in of_name} for of_name in rivals.values()))
    rival = min(rivals, key=lambda name: _rank_key(setting, [run for run in rivals[name] if run.seed in common]))
    return Comparison(
        setting, rival, _times_by_seed(setting, ours), _times_by_seed(setting, rivals[rival]), _find_endings(runs)
    )


def _rank_key(setting: Setting, runs: Sequence[Measured]) -> tuple[int, float]:
    """Return a sort key: the number of runs that missed the target, then the mean time of the runs that reached it."""
    times = list(_times_by_seed(setting, runs).values())
    reached = [time for time in times if math.isfinite(time)]
    return len(times) - len(reached), mean_or_nan(reached) if reached else math.inf


def _times_by_seed(setting: Setting, runs: Sequence[Measured]) -> dict[int, float]:
    return {run.seed: run.times[setting.targets[-1]] for run in runs}


def _find_endings(runs: Sequence[Measured]) -> dict[str, Ending]:
    """Return the ends of the long runs by method. Fed-Quilt is untuned, and other methods are tuned."""
    endings = group_by_entrant(runs, "long")
    endings.pop(OURS, None)
    endings |= {name: of_name for name, of_name in group_by_entrant(runs, "long-untuned").items() if name == OURS}
    return {
        name: Ending(mean_or_nan([run.accuracy for run in of_name]), of_name[0].fields["time"])
        for name, of_name in endings.items()
    }


def format_times(times: Mapping[int, float], setting: Setting) -> str:
    """Return the mean time as text.

    If some runs missed the target, the text is the number of runs that reached it, such as `3 of 5`. If all runs missed
    it, the text is `>` and the time limit of the setting, such as `> 2.5`.
    """
    values = np.array(list(times.values()))
    reached = int(np.isfinite(values).sum())
    if not reached:
        return f"> {setting.horizon:g}"
    if reached < len(values):
        return f"{reached} of {len(values)}"
    return f"{values.mean():.3f}"


def format_ratio(comparison: Comparison) -> str:
    """Return the geometric mean of (rival time / our time), with its 95 % interval.

    If a run missed the target, its time is unknown. The text then begins with `<` or `>`, because the mean is a bound.
    If runs of both methods missed it, the mean is not even a bound, and the text is `unknown`.
    """
    ours_missed, rival_missed = (
        any(map(math.isinf, times.values())) for times in (comparison.our_times, comparison.rival_times)
    )
    if ours_missed and rival_missed:
        return "unknown"
    bound = ""
    if ours_missed:
        bound = "< "
    elif rival_missed:
        bound = "> "
    text = f"{bound}{math.exp(mean_or_nan(comparison.log_ratios)):.2f}"
    if comparison.interval is None:
        return text
    return f"{text} [{comparison.interval[0]:.2f}, {comparison.interval[1]:.2f}]"


def format_endings(comparison: Comparison) -> str:
    """Return the final accuracies of Fed-Quilt and of the best other method in the long runs, with their times."""
    best = comparison.best_ending
    if best is None:
        return "–"
    ours, other = comparison.endings[OURS], comparison.endings[best]
    return f"{100 * ours.accuracy:.2f} % at {ours.time:g}, {best} {100 * other.accuracy:.2f} % at {other.time:g}"
