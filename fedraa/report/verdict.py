"""A comparison in words: the leader, its significance, related differences, a weakness, and next steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.report.runs import Group, Run
from fedraa.report.statistics import LEVEL, mean, welch

# Maximum number of groups behind the first that are described.
MOST_BEHIND = 4
# Minimum difference in idle time, and minimum ratio, that is described.
IDLE_GAP, TIMES = 0.1, 1.5
# Minimum difference in staleness that is described, in versions.
STALE_GAP = 1.0
# Gain over the last fifth of the evaluations, as a share of the whole, above which a run still improves.
RISING = 0.01


def verdict(groups: Sequence[Group]) -> list[str]:
    """Return paragraphs about several groups of runs and their main metric; none for a single group."""
    if len(groups) < 2:
        return []
    ranking = Ranking.of(groups)
    found = [ranking.in_words(), *_behind(ranking), _weakness(ranking), _next(ranking), _not_ended(groups)]
    return [paragraph for paragraph in found if paragraph]


@dataclass(frozen=True)
class Ranking:
    """Groups from the best to the worst.

    If a group has reached the target with every seed, the order is by mean time to the target. Otherwise it is by the
    main metric at the last time that all runs have reached.
    """

    groups: tuple[Group, ...]
    values: tuple[tuple[float, ...], ...]
    by_time: bool
    at: float | None
    """The time on the runs' clock; None if their clocks differ and each is taken at its end."""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Ranking":
        at = common_time(groups)
        times = [[run.summary["time_to_target"] for run in group.runs] for group in groups]
        reached = [all(time is not None for time in each) for each in times]
        if any(reached) and at is not None:
            values = [tuple(map(float, each)) if ok else () for each, ok in zip(times, reached, strict=True)]
            order = sorted(range(len(groups)), key=lambda i: mean(values[i]) if values[i] else np.inf)
        else:
            values = [tuple(value_at(run, at) for run in group.runs) for group in groups]
            sign = -1 if _better(groups) == "max" else 1
            order = sorted(range(len(groups)), key=lambda i: _last(sign * mean(values[i])))
        return cls(tuple(groups[i] for i in order), tuple(values[i] for i in order), any(reached), at)

    @property
    def first(self) -> Group:
        return self.groups[0]

    def in_words(self) -> str:
        """Return a sentence that compares the first group with the second, and the significance."""
        first, second = self.groups[0].label, self.groups[1].label
        said = self.first.first.figures.main.replace("_", " ")
        if self.by_time:
            best = mean(self.values[0])
            if not self.values[1]:
                return f"{first} reached the target first, at time {best:.4g}; the others did not with every seed."
            later = mean(self.values[1])
            if later == best:
                return f"{first} and {second} reached the target at the same time, {best:.4g}."
            if best == 0:
                return f"{first} reached the target at time 0; {second} at time {later:.4g}. {self._noise()}"
            ratio = later / best
            told = f"{first} reached the target first, at time {best:.4g}; {second} took {ratio:.2f} times as long."
            return f"{told} {self._noise()}"
        best, other = mean(self.values[0]), mean(self.values[1])
        when = "at the end of each run" if self.at is None else f"at time {self.at:.4g}"
        if not np.isfinite([best, other]).all():
            return f"Who is ahead cannot be told: the {said} of {second} is not finite {when}."
        listed = zip(self.groups[2:], self.values[2:], strict=True)
        others = ", ".join(f"{group.label} {mean(values):.4f}" for group, values in listed)
        others = f" Behind: {others}." if others else ""
        if best == other:
            return f"{first} and {second} have the same {said}, {best:.4f}, {when}.{others}"
        if self.tie:
            return f"{first} and {second} are level {when}: {said} {best:.4f} and {other:.4f}. {self._noise()}{others}"
        gap = f"{abs(best - other):.4f} {'more' if best > other else 'less'}"
        return f"{first} is ahead {when}: {said} {best:.4f}, {gap} than {second} ({other:.4f}). {self._noise()}{others}"

    @property
    def tie(self) -> bool:
        """Return True if no test separates the first two groups."""
        p = welch(self.values[0], self.values[1])
        return p is not None and p >= LEVEL

    @property
    def single(self) -> bool:
        """Return True if one of the first two groups has a single seed."""
        return min(map(len, self.values[:2])) < 2

    def _noise(self) -> str:
        """Return a sentence about the difference of the first two groups and the spread over seeds."""
        if self.single:
            return "With a single seed nobody knows whether that is more than noise."
        p = welch(self.values[0], self.values[1])
        if p is None:
            return "The seeds of each do not differ at all, so there is no noise to test against."
        tested = f"(Welch's t-test over the seeds, p = {p:.2g})"
        return f"That is beyond noise {tested}." if p < LEVEL else f"The difference is within noise {tested}."


def common_time(groups: Sequence[Group]) -> float | None:
    """Return the time that every run has reached; None if the clocks differ."""
    runs = [run for group in groups for run in group.runs]
    if len({(run.flags["clock"], run.flags["units"]) for run in runs}) > 1:
        return None
    return min(run.end for run in runs)


def value_at(run: Run, at: float | None) -> float:
    """Return the main metric of the last model that was evaluated until this time."""
    evals = run.evals if at is None else run.evals[run.evals["t"] <= at]
    return float((run.evals if evals.empty else evals)[run.figures.main].iloc[-1])


def _better(groups: Sequence[Group]) -> str:
    figures = groups[0].first.figures
    return figures.better(figures.main)


def _last(value: float) -> float:
    """Return a sort key by which values that are not finite come last."""
    return value if np.isfinite(value) else np.inf


def _behind(ranking: Ranking) -> list[str]:
    """Return a paragraph on how the groups behind the first differ in the logs, as possible reasons for their rank."""
    first = ranking.first
    told = [
        f"{group.label}: {'; '.join(notes)}."
        for group in ranking.groups[1 : 1 + MOST_BEHIND]
        if (notes := differences(group, first))
    ]
    return [f"What is otherwise than with {first.label}, and may be why. {' '.join(told)}"] if told else []


def differences(group: Group, first: Group) -> list[str]:
    """Return the differences in idle time, staleness, coverage, work and traffic that are large."""
    found = []
    if all(run.summary["steps"] == 0 for run in group.runs):
        found.append("it has taken no step: the time is up before its first one")
    idle, usual = _mean(group, lambda run: run.idle_share), _mean(first, lambda run: run.idle_share)
    if abs(idle - usual) > IDLE_GAP:
        found.append(f"its clients had no task for {idle:.0%} of the time, not {usual:.0%}")
    stale, usual = (_mean(each, lambda run: float(run.summary["staleness_mean"])) for each in (group, first))
    if stale - usual > STALE_GAP:
        found.append(f"its updates were {stale:.1f} versions late, not {usual:.1f}")
    bare, usual = _mean(group, uncovered), _mean(first, uncovered)
    if abs(bare - usual) > 0.01:
        found.append(f"a round left {bare:.0%} of the parameters without training, not {usual:.0%}")
    for what, of in (("computed", _flops), ("sent", _bytes)):
        amount, usual = _mean(group, of), _mean(first, of)
        if min(amount, usual) > 0 and not 1 / TIMES < amount / usual < TIMES:
            found.append(f"it {what} {amount / usual:.2g} times as much per unit of time")
    return found


def uncovered(run: Run) -> float:
    """Return the mean share of the parameters that no client trained in a round; 0 without rounds."""
    if run.rounds.empty:
        return 0.0
    return float(run.rounds["uncovered"].mean()) / float(run.config["resolved"]["parameters"])


def _mean(group: Group, of: Callable[[Run], float]) -> float:
    return mean([of(run) for run in group.runs])


def _flops(run: Run) -> float:
    return float(run.summary["flops"]) / run.end if run.end else 0.0


def _bytes(run: Run) -> float:
    return float(run.summary["bytes_down"] + run.summary["bytes_up"]) / run.end if run.end else 0.0


def _weakness(ranking: Ranking) -> str:
    """Return a sentence about metrics in which another group is better than the first: loss and worst client."""
    figures, notes = ranking.first.first.figures, []
    for name, said in (("loss", "loss"), ("client_worst", "worst client")):
        if name == figures.main:
            continue
        sign = 1 if figures.better(name) == "min" else -1
        values = {group.label: mean([float(run.summary[name]) for run in group.runs]) for group in ranking.groups}
        best = min(values, key=lambda label: _last(sign * values[label]))
        own = values[ranking.first.label]
        if best != ranking.first.label and values[best] != own:
            last = own == max(values.values(), key=lambda value: sign * value)
            place = ", the worst of all," if last and len(values) > 2 else ""
            notes.append(f"its {said}{place} is {own:.4g}, that of {best} {values[best]:.4g}")
    return f"A weakness of {ranking.first.label}: {'; '.join(notes)}." if notes else ""


def _next(ranking: Ranking) -> str:
    """Return a sentence with experiments that would make the comparison clearer."""
    tips = []
    if ranking.single:
        tips.append("run several seeds (fedraa compare ... --seeds 0 1 2)")
    elif ranking.tie:
        tips.append("run more seeds, if so small a difference matters")
    rising = [group.label for group in ranking.groups if all(map(gains, group.runs))]
    if rising:
        who = "all" if len(rising) == len(ranking.groups) else " and ".join(rising[:2])
        tips.append(f"give more time: {who} still got better at the end")
    if len({run.flags["lr"] for group in ranking.groups for run in group.runs}) == 1:
        tips.append("give each method its own best learning rate before it is called worse; here all have one")
    return f"Next: {'; '.join(tips)}." if tips else ""


def gains(run: Run) -> bool:
    """Return True if the last fifth of the evaluations still brought a considerable part of the run's gain."""
    values = run.evals[run.figures.main].to_numpy(float)
    if len(values) < 5 or not np.isfinite(values[[0, -1]]).all():
        return False
    sign = 1 if run.figures.better(run.figures.main) == "max" else -1
    before = values[: -len(values) // 5]
    gain, whole = sign * (values[-1] - before[-1]), sign * (values[-1] - values[0])
    return bool(whole > 0 and gain > RISING * whole)


def _not_ended(groups: Sequence[Group]) -> str:
    """Return a sentence about the runs that have not ended."""
    open_ends = [run for group in groups for run in group.runs if not run.ended]
    if not open_ends:
        return ""
    named = ", ".join(f"{run.directory} ({run.summary['reason']} at time {run.end:.4g})" for run in open_ends[:3])
    more = f" and {len(open_ends) - 3} more" if len(open_ends) > 3 else ""
    return f"Not ended, and shown as far as they are: {named}{more}."
