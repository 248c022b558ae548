"""Paragraphs that compare methods: the best method and its weakness, significance, differences, and next steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.objectives import MetricSpec
from fedraa.objectives.metric_spec import metric_heading
from fedraa.report.runs import Group, Run, have_same_clock, have_same_target, runs_of
from fedraa.report.statistics import LEVEL, mean_or_nan, welch_p_value
from fedraa.rundir.config_file import PROBLEM

# Maximum number of groups of which the report describes the differences from the best group.
MAX_DESCRIBED_GROUPS = 4
# The report mentions a difference from the best group if it exceeds these limits: a fraction of idle time, a number of
# versions of mean staleness, a fraction of untrained parameters, and a factor of FLOPs and of traffic.
MAX_IDLE_GAP = 0.1
MAX_STALENESS_GAP = 1.0
MAX_UNTRAINED_GAP = 0.01
MAX_RATE_RATIO = 1.5
# A run still improves if the last 20 % of its evaluations brought more than this fraction of the gain of the whole run.
# The gain is the change of the main metric.
MIN_LATE_GAIN = 0.01


def describe_comparison(groups: Sequence[Group]) -> list[str]:
    """Return paragraphs that compare groups of runs; an empty list for a single group."""
    if len(groups) < 2:
        return []
    if len({repr([run.options.get(name) for name in PROBLEM]) for run in runs_of(groups)}) > 1:
        paragraphs = ["The runs have different data or tasks, so their values do not show which method is better."]
    else:
        ranking = Ranking.of(groups)
        paragraphs = [
            ranking.in_words(),
            _describe_followers(ranking),
            _describe_weakness(ranking),
            _suggest_next_runs(ranking),
        ]
    return [paragraph for paragraph in (*paragraphs, _describe_unfinished(groups)) if paragraph]


@dataclass(frozen=True)
class Ranking:
    """Groups of runs from the best to the worst.

    If all runs have the same clock and target, and a group reached the target with all seeds, the order is by the mean
    time to the target. In this order, a group with a seed that did not reach the target comes last. In all other cases
    the order is by the main metric.

    Attributes:
        groups: The groups in this order.
        values: The seeds' times to the target, or their main metrics, for each group. The times of a group are empty if
            one of its seeds did not reach the target.
        by_time: True if the order is by time to the target.
        at: The time at which metrics are compared, which is the end of the shortest run. None if the clocks of the runs
            differ. The last value of each run is then compared.
    """

    groups: tuple[Group, ...]
    values: tuple[tuple[float, ...], ...]
    by_time: bool
    at: float | None

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Ranking":
        at = common_time(groups)
        values = [_times_to_target(group) for group in groups]
        by_time = any(values) and at is not None and have_same_target(groups)
        sign = 1
        if not by_time:
            values = [tuple(value_at(run, at) for run in group.runs) for group in groups]
            metric_spec = groups[0].first.metric_spec
            sign = -_gain_sign(metric_spec, metric_spec.main)
        order = sorted(range(len(groups)), key=lambda i: _finite_or_inf(sign * mean_or_nan(values[i])))
        return cls(tuple(groups[i] for i in order), tuple(values[i] for i in order), by_time, at)

    @property
    def first(self) -> Group:
        return self.groups[0]

    def in_words(self) -> str:
        """Return sentences about the first two groups and the significance of their difference."""
        if self.by_time:
            return self._compare_times_to_target()
        first, second = self.groups[0].label, self.groups[1].label
        metric = metric_heading(self.first.first.metric_spec.main)
        best, other = mean_or_nan(self.values[0]), mean_or_nan(self.values[1])
        when = "at the end of each run" if self.at is None else f"at time {self.at:.4g}"
        if not np.isfinite([best, other]).all():
            return f"The methods cannot be compared: the {metric} of {second} is not finite {when}."
        others = self._describe_others()
        if best == other:
            return f"{first} and {second} have the same {metric}, {best:.4f}, {when}.{others}"
        if self.is_tie:
            values = f"{metric} {best:.4f} and {other:.4f}"
            start = f"{first} and {second} do not differ significantly {when}"
            return f"{start}: {values}. {self._describe_noise()}{others}"
        gap = f"{abs(best - other):.4f} {'more' if best > other else 'less'}"
        values = f"{metric} {best:.4f}, {gap} than {second} ({other:.4f})"
        return f"{first} is ahead {when}: {values}. {self._describe_noise()}{others}"

    def _describe_others(self) -> str:
        """Return a sentence with the mean of each group after the second, and its p-value against the first group."""
        notes = []
        heading = "The others"
        for group, values in zip(self.groups[2:], self.values[2:], strict=True):
            note = f"{group.label} {mean_or_nan(values):.4f}"
            p = welch_p_value(self.values[0], values)
            if p is not None:
                note += f" (p = {p:.2g})"
                heading = f"The others, with p against {self.first.label}"
            notes.append(note)
        if not notes:
            return ""
        return f" {heading}: {', '.join(notes)}."

    def _compare_times_to_target(self) -> str:
        first, second = self.groups[0].label, self.groups[1].label
        best = mean_or_nan(self.values[0])
        if not self.values[1]:
            return f"Only {first} reached the target with every seed, at time {best:.4g}."
        later = mean_or_nan(self.values[1])
        if later == best:
            return f"{first} and {second} reached the target at the same time, {best:.4g}."
        if best == 0:
            return f"{first} reached the target at time 0; {second} at time {later:.4g}. {self._describe_noise()}"
        ratio = f"{later / best:.2f} times that time"
        return f"{first} reached the target first, at time {best:.4g}; {second} took {ratio}. {self._describe_noise()}"

    @property
    def is_tie(self) -> bool:
        """Return True if a test finds no significant difference between the first two groups."""
        p = welch_p_value(self.values[0], self.values[1])
        return p is not None and p >= LEVEL

    @property
    def has_single_seed(self) -> bool:
        # A group that did not reach the target has no values, even if it has several seeds.
        return any(len(values) == 1 for values in self.values[:2])

    def _describe_noise(self) -> str:
        """Return a sentence that compares the difference of the first two groups with the noise between seeds."""
        if self.has_single_seed:
            return "A single seed does not show whether the difference is more than noise."
        p = welch_p_value(self.values[0], self.values[1])
        if p is None:
            return "All seeds of a method have equal values, so no test is possible."
        side = "beyond" if p < LEVEL else "within"
        return f"The difference is {side} noise (Welch's t-test over the seeds, p = {p:.2g})."


def common_time(groups: Sequence[Group]) -> float | None:
    """Return the time at which the shortest run ends; None if the clocks of the runs differ."""
    if not have_same_clock(groups):
        return None
    return min(run.end for run in runs_of(groups))


def value_at(run: Run, at: float | None, metric: str | None = None) -> float:
    """Return a metric of the last evaluation up to the time `at`.

    Args:
        run: The run.
        at: The time; None for the end of the run.
        metric: The metric; None for the main metric.
    """
    evals = run.evals
    if at is not None and (evals["t"] <= at).any():
        evals = evals[evals["t"] <= at]
    return float(evals[metric or run.metric_spec.main].iloc[-1])


def _times_to_target(group: Group) -> tuple[float, ...]:
    """Return each seed's time to the target; empty if a seed did not reach it."""
    times = [run.summary["time_to_target"] for run in group.runs]
    if any(time is None for time in times):
        return ()
    return tuple(map(float, times))


def _gain_sign(metric_spec: MetricSpec, metric: str) -> int:
    """Return 1 if a larger value of the metric is better, otherwise -1."""
    return 1 if metric_spec.better(metric) == "max" else -1


def _finite_or_inf(value: float) -> float:
    """Replace a value that is not finite by infinity, so that it is sorted last."""
    if np.isfinite(value):
        return value
    return np.inf


def _describe_followers(ranking: Ranking) -> str:
    """Return a paragraph with large differences from the best group, which may explain why other groups are worse."""
    first = ranking.first
    sentences = []
    for group in ranking.groups[1 : 1 + MAX_DESCRIBED_GROUPS]:
        notes = describe_differences(group, first)
        if notes:
            sentences.append(f"{group.label}: {'; '.join(notes)}.")
    if not sentences:
        return ""
    return f"Differences from {first.label} that may explain the result. {' '.join(sentences)}"


def describe_differences(group: Group, first: Group) -> list[str]:
    """Return a phrase per large difference, such as "its mean staleness was 9 versions".

    The differences are those in idle time, staleness, coverage, FLOPs and traffic.
    """

    def means(quantity: Callable[[Run], float]) -> tuple[float, float]:
        """Return the means of a quantity over the runs of `group` and over those of `first`."""
        return mean_or_nan(list(map(quantity, group.runs))), mean_or_nan(list(map(quantity, first.runs)))

    notes = []
    if all(run.summary["steps"] == 0 for run in group.runs):
        notes.append("it ended before its first step")
    idle, usual = means(lambda run: run.idle_fraction)
    if abs(idle - usual) > MAX_IDLE_GAP:
        notes.append(f"its clients had no task for {idle:.0%} of the time, clients of {first.label} for {usual:.0%}")
    staleness, usual = means(lambda run: float(run.summary["staleness_mean"]))
    if staleness - usual > MAX_STALENESS_GAP:
        notes.append(f"its mean staleness was {staleness:.1f} versions, with {first.label} it was {usual:.1f}")
    untrained, usual = means(untrained_fraction)
    # An asynchronous run has no rounds.
    if abs(untrained - usual) > MAX_UNTRAINED_GAP and not group.first.rounds.empty:
        note = f"a round left on average {untrained:.0%} of the parameters untrained"
        if not first.first.rounds.empty:
            note += f", a round of {first.label} {usual:.0%}"
        notes.append(note)
    if not have_same_clock((group, first)):
        return notes
    for quantity, rate in (("FLOPs", _flops_per_time), ("traffic", _bytes_per_time)):
        amount, usual = means(rate)
        if min(amount, usual) > 0 and not 1 / MAX_RATE_RATIO < amount / usual < MAX_RATE_RATIO:
            notes.append(f"it had {amount / usual:.2g} times the {quantity} of {first.label} per unit of time")
    return notes


def untrained_fraction(run: Run) -> float:
    """Return the fraction of parameters that no client trained, averaged over rounds.

    An asynchronous run has the value 0.
    """
    if run.rounds.empty:
        return 0.0
    return float(run.rounds["uncovered"].mean()) / float(run.config["resolved"]["parameters"])


def _flops_per_time(run: Run) -> float:
    return _per_time(run.summary["flops"], run)


def _bytes_per_time(run: Run) -> float:
    return _per_time(run.summary["bytes_down"] + run.summary["bytes_up"], run)


def _per_time(amount: float, run: Run) -> float:
    """Return `amount` per unit of the run's time; 0 for a run that ended at time 0."""
    if run.end == 0:
        return 0.0
    return float(amount) / run.end


def _describe_weakness(ranking: Ranking) -> str:
    """Return a sentence about the metrics in which the best group is worse than another group.

    The metrics are those at `ranking.at`, or at the end of each run if the order is by the time to the target.
    """
    metric_spec = ranking.first.first.metric_spec
    at = None if ranking.by_time else ranking.at
    notes = []
    for name, heading in (("loss", "loss"), ("client_worst", "worst client")):
        if name == metric_spec.main:
            continue
        sign = -_gain_sign(metric_spec, name)
        means = [mean_or_nan([value_at(run, at, name) for run in group.runs]) for group in ranking.groups]
        best = min(range(len(means)), key=lambda i: _finite_or_inf(sign * means[i]))
        if best == 0 or means[best] == means[0]:
            continue
        rank = ""
        if len(means) > 2 and means[0] == max(means, key=lambda value: _finite_or_inf(sign * value)):
            rank = ", the worst of all,"
        other = ranking.groups[best].label
        notes.append(f"its {heading}{rank} is {means[0]:.4g} (with {other}: {means[best]:.4g})")
    if not notes:
        return ""
    return f"A weakness of {ranking.first.label}: {'; '.join(notes)}."


def _suggest_next_runs(ranking: Ranking) -> str:
    tips = []
    if ranking.has_single_seed:
        tips.append("run several seeds (fedraa compare ... --seeds 0 1 2)")
    elif ranking.is_tie:
        tips.append("run more seeds, if such a small difference matters")
    rising = [group.label for group in ranking.groups if all(map(still_improves, group.runs))]
    if rising:
        names = "all methods" if len(rising) == len(ranking.groups) else " and ".join(rising[:2])
        tips.append(f"give more time: {names} still improved at the end")
    if len({run.config["method"]["local"].get("lr") for run in runs_of(ranking.groups)}) == 1:
        tips.append("tune the learning rate of each method (fedraa tune), because all methods have the same one here")
    if not tips:
        return ""
    return f"Next: {'; '.join(tips)}."


def still_improves(run: Run) -> bool:
    """Return True if the main metric still improved in the last 20 % of the evaluations.

    Their gain must be more than the fraction `MIN_LATE_GAIN` of the gain of the whole run. The result is False for a
    run that ended because it reached its target: a larger budget would not change this run.
    """
    if run.summary["reason"] in ("accuracy", "target"):
        return False
    values = run.evals[run.metric_spec.main].to_numpy(float)
    if len(values) < 5 or not np.isfinite(values[[0, -1]]).all():
        return False
    sign = _gain_sign(run.metric_spec, run.metric_spec.main)
    before = values[: -len(values) // 5]
    gain = sign * (values[-1] - before[-1])
    whole_gain = sign * (values[-1] - values[0])
    return bool(whole_gain > 0 and gain > MIN_LATE_GAIN * whole_gain)


def _describe_unfinished(groups: Sequence[Group]) -> str:
    unfinished = [run for run in runs_of(groups) if not run.ended]
    if not unfinished:
        return ""
    names = ", ".join(f"{run.directory} ({run.summary['reason']} at time {run.end:.4g})" for run in unfinished[:3])
    if len(unfinished) > 3:
        names += f" and {len(unfinished) - 3} more"
    return f"Not ended, and shown until their last evaluation: {names}."
