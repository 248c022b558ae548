"""The results of the study `race` in one setting as a table and as sentences."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.studies.race.entrants import ENTRANTS, LENT_TO, LIMIT, OURS, ROUNDS
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.tables import describe_test, markdown_table
from fedraa.components.text import text_of
from fedraa.numbers import format_count
from fedraa.report.statistics import half_width95, mean_or_nan, welch_p_value

Values = Mapping[str, Mapping[str, Any]]
Runs = Mapping[str, Sequence[Measured]]
"""The runs of one part of the race, by entrant."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, the function that reads a run's value, and the number format."""

    name: str
    of: Callable[[Measured], float]
    form: Callable[[float], str]


def make_columns(setting: Setting) -> list[Column]:
    """Return the columns for normal runs: times to the targets, cost until the last target, worst client's accuracy."""
    last = setting.targets[-1]
    times = [
        Column(f"time to {setting.target(level)}", partial(_time_to_level, level), "{:.3f}".format)
        for level in setting.targets
    ]
    return [
        *times,
        Column(f"MB to {setting.target(last)}", lambda run: run.megabytes[last], _format_three_digits),
        Column(f"GFLOP to {setting.target(last)}", lambda run: run.gflop[last], _format_three_digits),
        _worst_client_column(setting),
    ]


def _format_three_digits(value: float) -> str:
    return np.format_float_positional(float(f"{value:.3g}"), trim="-")


def _worst_client_column(setting: Setting) -> Column:
    if setting.fields.get("objective") == "next-token":
        return Column("worst client's perplexity", lambda run: run.worst, "{:.2f}".format)
    return Column("worst client %", lambda run: 100 * run.worst, "{:.2f}".format)


def _time_to_level(level: float, run: Measured) -> float:
    return run.times[level]


def end_columns(setting: Setting) -> list[Column]:
    """Return the columns for long runs: the final accuracy, and the accuracy of the worst client."""
    return [Column("accuracy %", lambda run: 100 * run.accuracy, "{:.2f}".format), _worst_client_column(setting)]


def group_by_entrant(runs: Sequence[Measured], part: str) -> dict[str, list[Measured]]:
    """Return the runs of one part of the study, such as "tuned", by the name of the entrant (the method)."""
    by_entrant: dict[str, list[Measured]] = {}
    for run in runs:
        if run.part == part:
            by_entrant.setdefault(run.entrant, []).append(run)
    return by_entrant


def group_with_ours(runs: Sequence[Measured], part: str) -> dict[str, list[Measured]]:
    """Return the runs of one part by the name of the entrant. The tuned part also has the untuned runs of Fed-Quilt."""
    by_entrant = group_by_entrant(runs, part)
    ours = [run for run in runs if run.entrant == OURS and run.part == "untuned"]
    return {OURS: ours} | by_entrant if ours and by_entrant else by_entrant


def format_cell(column: Column, runs: Sequence[Measured]) -> str:
    """Return the mean ± half of its 95 % interval. If a run missed the target, return how many runs reached it."""
    values = [column.of(run) for run in runs]
    reached = sum(map(math.isfinite, values))
    if not reached:
        return "–"
    if reached < len(values):
        return f"{reached} of {len(values)} there"
    spread = half_width95(values)
    if spread is None:
        return column.form(mean_or_nan(values))
    return f"{column.form(mean_or_nan(values))} ± {column.form(spread)}"


def make_frame(setting: Setting, runs: Sequence[Measured], long: Sequence[Measured], values: Values) -> pd.DataFrame:
    """Return the table for the CSV file.

    It has a row for each combination of a part of the study, an entrant in this part, and a column of the part's
    results. In the row, `reached` is the number of runs with a finite value. If the value of a run is infinite, the
    mean is infinite.

    Args:
        setting: The setting.
        runs: The tuned and the untuned runs.
        long: The long runs.
        values: The tuned hyperparameter values by entrant.
    """
    lines = []
    for part, shown, by_entrant in _iterate_parts(setting, runs, long):
        for entrant, runs_of_entrant in by_entrant.items():
            text_of_values = format_values(values.get(entrant, {})) if part in ("tuned", "long") else ""
            for column in shown:
                numbers = [column.of(run) for run in runs_of_entrant]
                reached = sum(map(math.isfinite, numbers))
                middle = mean_or_nan(numbers) if reached == len(numbers) else math.inf
                statistics = (middle, half_width95(numbers), len(numbers), reached)
                lines.append((part, entrant, column.name, *statistics, text_of_values))
    return pd.DataFrame(lines, columns=["part", "entrant", "figure", "mean", "ci95", "n", "reached", "values"])


def _iterate_parts(
    setting: Setting, runs: Sequence[Measured], long: Sequence[Measured]
) -> Iterator[tuple[str, list[Column], dict[str, list[Measured]]]]:
    for part in ("tuned", "untuned"):
        yield part, make_columns(setting), group_by_entrant(runs, part)
    for part in ("long", "long-untuned"):
        yield part, end_columns(setting), group_by_entrant(long, part)


def format_table(shown: Sequence[Column], by_entrant: Runs) -> str:
    """Return a Markdown table with one row per entrant, in the order of `rank_entrants`."""
    rows = (
        [entrant, str(len(by_entrant[entrant])), *(format_cell(column, by_entrant[entrant]) for column in shown)]
        for entrant in rank_entrants(shown, by_entrant)
    )
    return markdown_table(["", "seeds", *(column.name for column in shown)], rows)


def rank_entrants(shown: Sequence[Column], by_entrant: Runs) -> list[str]:
    """Return the entrants, sorted by mean time to the last target. The entrant `limit`, an upper bound, is first.

    Entrants with equal times are sorted by the time to the previous target.
    """
    times = [column for column in shown if column.name.startswith("time to ")][::-1]

    def target_times(entrant: str) -> tuple[float, ...]:
        if not times:
            return (-mean_or_nan([shown[0].of(run) for run in by_entrant[entrant]]),)
        return tuple(mean_or_nan([column.of(run) for run in by_entrant[entrant]]) for column in times)

    return sorted(
        by_entrant, key=lambda entrant: (entrant != LIMIT, target_times(entrant), -_mean_accuracy(by_entrant[entrant]))
    )


def _mean_accuracy(runs: Sequence[Measured]) -> float:
    return mean_or_nan([run.accuracy for run in runs])


def format_values(values: Mapping[str, Any]) -> str:
    """Return tuned values as text, such as `lr=0.1 local_steps=5`."""
    return " ".join(f"{name}={_format_value(value)}" for name, value in values.items())


def _format_value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(f"{item:.3g}" if isinstance(item, float) else str(item) for item in value)
    return str(text_of(value))


def describe_findings(setting: Setting, runs: Sequence[Measured], long: Sequence[Measured]) -> list[str]:
    """Return sentences on the fastest methods, the final accuracies and missing entrants.

    Args:
        setting: The setting.
        runs: The tuned and the untuned runs.
        long: The long runs.
    """
    return [
        *_describe_lead(setting, runs),
        *_compare_final_accuracies(long),
        *_list_missing(setting, runs),
    ]


def _describe_lead(setting: Setting, runs: Sequence[Measured]) -> Iterator[str]:
    """Yield sentences that compare Fed-Quilt, with its defaults, with tuned and with untuned entrants.

    They do not name the best other method, tuned. The entrant `limit` is an upper bound for all methods.
    """
    level = setting.targets[-1]
    ours = group_by_entrant(runs, "untuned").get(OURS, [])
    if not ours:
        return
    our_time = mean_or_nan([run.times[level] for run in ours])
    if not math.isfinite(our_time):
        yield f"{OURS} does not reach {setting.target(level)} in every run."
        return
    for part in ("tuned", "untuned"):
        by_entrant = group_by_entrant(runs, part)
        here = f"{part}, {setting.target(level)}"
        times = {name: mean_or_nan([run.times[level] for run in of_entrant]) for name, of_entrant in by_entrant.items()}
        finite = {name: t for name, t in times.items() if name not in (OURS, LIMIT) and math.isfinite(t)}
        label = "the best other method"
        candidates = finite
        if part == "tuned":
            label = f"the best other method with parts of {OURS}"
            candidates = {name: t for name, t in finite.items() if name in LENT_TO}
        if candidates:
            best = min(candidates, key=candidates.__getitem__)
            sentence = _compare_times(label, best, our_time, candidates[best])
            yield f"{here}: {sentence}{_describe_noise(ours, by_entrant[best], level)}."
        if ROUNDS in finite:
            yield f"{here}: {OURS} takes 1/{finite[ROUNDS] / our_time:.1f} of {ROUNDS}'s time ({finite[ROUNDS]:.3f})."
        elif ROUNDS in times:
            count = sum(math.isfinite(run.times[level]) for run in by_entrant[ROUNDS])
            all_runs = format_count(len(by_entrant[ROUNDS]), "run")
            state = f"reaches it in {count} of {all_runs}" if count else "does not reach it"
            factor = setting.horizon / our_time
            yield f"{here}: {ROUNDS} {state} by time {setting.horizon:g}, which is {factor:.1f} x the time of {OURS}."
        limit = times.get(LIMIT, math.inf)
        if math.isfinite(limit):
            yield f"{here}: the limit takes {limit:.3f}, and {OURS} takes {our_time / limit:.1f} x this time."


def _compare_times(label: str, name: str, our_time: float, its_time: float) -> str:
    """Return a sentence that compares Fed-Quilt's time with another entrant's time."""
    if its_time >= our_time:
        ratio = its_time / our_time
        return f"{OURS} takes {our_time:.3f}, {ratio:.2f} x as fast as {label}, {name} ({its_time:.3f})"
    return f"{name} is faster: it takes {its_time:.3f}, {our_time / its_time:.2f} x as fast as {OURS} ({our_time:.3f})"


def _describe_noise(ours: Sequence[Measured], others: Sequence[Measured], level: float) -> str:
    """Return a text on the significance of the difference in time to an accuracy; empty if no test is possible."""
    p = welch_p_value([run.times[level] for run in ours], [run.times[level] for run in others])
    return f", {describe_test(p)}" if p is not None else ""


def _compare_final_accuracies(long: Sequence[Measured]) -> Iterator[str]:
    ours = group_by_entrant(long, "long-untuned").get(OURS)
    others = {name: runs for name, runs in group_by_entrant(long, "long").items() if name not in LENT_TO}
    if not ours or not others:
        return
    percent = {name: [100 * run.accuracy for run in runs] for name, runs in {OURS: ours, **others}.items()}
    means = {name: mean_or_nan(values) for name, values in percent.items()}
    best = max(others, key=means.__getitem__)
    test = describe_test(welch_p_value(percent[OURS], percent[best]))
    times = {name: float(runs[0].fields["time"]) for name, runs in ((OURS, ours), (best, others[best]))}
    yield (
        f"at the end of long runs: {OURS} with its defaults {means[OURS]:.2f} % at {times[OURS]:g}, and the best of "
        f"{format_count(len(others), 'other method')}, tuned, {best}, {means[best]:.2f} % at {times[best]:g} ({test})."
    )


def _list_missing(setting: Setting, runs: Sequence[Measured]) -> Iterator[str]:
    """Yield sentences on the entrants that cannot run, and on those that have not run yet."""
    reasons = {name: entrant.refusal_reason(setting) for name, entrant in ENTRANTS.items()}
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    yield from (f"{name} cannot be run here: {reason}." for name, reason in refused.items())
    for part, expected in (("tuned", ENTRANTS.keys() - {OURS}), ("untuned", ENTRANTS.keys() - {LIMIT})):
        present = group_by_entrant(runs, part)
        missing = [name for name in ENTRANTS if name in expected and name not in present and name not in refused]
        if missing:
            yield f"{part}, not run: {', '.join(missing)}."
