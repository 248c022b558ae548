"""The race as a table and in words: every number is of a run, every sentence is worked out from them."""

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
from benchmarks.studies.tables import markdown_table
from fedraa.components.text import text_of
from fedraa.report.statistics import ci95, mean, significant, welch

Values = Mapping[str, Mapping[str, Any]]
FASTER = 1.5  # as much faster than the best other ours should be
FIFTH = 5.0  # and as much faster than FedAvg
COMPUTED = "GFLOP"


@dataclass(frozen=True)
class Column:
    """A figure of a run: its name with its unit, how it is read and shown."""

    name: str
    of: Callable[[Measured], float]
    form: Callable[[float], str]


def columns(setting: Setting) -> list[Column]:
    """The table's: time to three targets, then what was spent till the last, and the accuracies in the end."""
    last = setting.targets[-1]
    times = [
        Column(f"time to {setting.target(level)}", partial(_time, level), "{:.3f}".format) for level in setting.targets
    ]
    return [
        *times,
        Column(f"MB to {setting.target(last)}", lambda run: run.megabytes[last], _three_digits),
        Column(f"{COMPUTED} to {setting.target(last)}", lambda run: run.gflop[last], _three_digits),
        _worst(setting),
    ]


def _three_digits(value: float) -> str:
    """Without an exponent."""
    return np.format_float_positional(float(f"{value:.3g}"), trim="-")


def _worst(setting: Setting) -> Column:
    """In the figure of the setting's objective."""
    if setting.fields.get("objective") == "next-token":
        return Column("worst client's perplexity", lambda run: run.worst, "{:.2f}".format)
    return Column("worst client %", lambda run: 100 * run.worst, "{:.2f}".format)


def _time(level: float, run: Measured) -> float:
    return run.times[level]


def end_columns(setting: Setting) -> list[Column]:
    """Of long runs."""
    return [Column("accuracy %", lambda run: 100 * run.accuracy, "{:.2f}".format), _worst(setting)]


def of_part(runs: Sequence[Measured], part: str) -> dict[str, list[Measured]]:
    """The runs of a part by entrant, those that are there first first."""
    found: dict[str, list[Measured]] = {}
    for run in runs:
        if run.part == part:
            found.setdefault(run.entrant, []).append(run)
    return found


def text(column: Column, runs: Sequence[Measured]) -> str:
    """Mean ± 95 % interval; of targets that not every run was at, how many were."""
    values = [column.of(run) for run in runs]
    there = [value for value in values if math.isfinite(value)]
    if not there:
        return "–"
    if len(there) < len(values):
        return f"{len(there)} of {len(values)} there"
    spread = ci95(values)
    return column.form(mean(values)) + ("" if spread is None else f" ± {column.form(spread)}")


def frame(setting: Setting, runs: Sequence[Measured], long: Sequence[Measured], values: Values) -> pd.DataFrame:
    """A line per part, entrant and figure: mean, interval, runs, of which so many have the figure; the values."""
    lines = []
    for part, shown, of in _parts(setting, runs, long):
        for entrant, mine in of.items():
            told = said(values.get(entrant, {})) if part != "untuned" else ""
            for column in shown:
                all_of = [column.of(run) for run in mine]
                there = [value for value in all_of if math.isfinite(value)]
                whole = len(there) == len(all_of)
                figures = (mean(all_of) if whole else math.inf, ci95(all_of), len(all_of), len(there))
                lines.append((part, entrant, column.name, *figures, told))
    return pd.DataFrame(lines, columns=["part", "entrant", "figure", "mean", "ci95", "n", "reached", "values"])


def _parts(
    setting: Setting, runs: Sequence[Measured], long: Sequence[Measured]
) -> Iterator[tuple[str, list[Column], dict[str, list[Measured]]]]:
    for part in ("tuned", "untuned"):
        yield part, columns(setting), of_part(runs, part)
    yield "long", end_columns(setting), of_part(long, "long")


def markdown(shown: Sequence[Column], of: Mapping[str, Sequence[Measured]]) -> str:
    """Rows in the order in which they are at the targets, the limit first."""
    rows = (
        [entrant, str(len(of[entrant])), *(text(column, of[entrant]) for column in shown)]
        for entrant in order(shown, of)
    )
    return markdown_table(["", "seeds", *(column.name for column in shown)], rows)


def order(shown: Sequence[Column], of: Mapping[str, Sequence[Measured]]) -> list[str]:
    """The limit, then who is at the last target first; of those that are not who is at the one before."""
    times = [column for column in shown if column.name.startswith("time to ")][::-1]

    def place(entrant: str) -> tuple[float, ...]:
        if not times:
            return (-mean([shown[0].of(run) for run in of[entrant]]),)
        return tuple(mean([column.of(run) for run in of[entrant]]) for column in times)

    return sorted(of, key=lambda entrant: (entrant != LIMIT, place(entrant), -_best(of[entrant])))


def _best(runs: Sequence[Measured]) -> float:
    return mean([run.accuracy for run in runs])


def said(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(f"{each:.3g}" if isinstance(each, float) else str(each) for each in value)
    return str(text_of(value))


def findings(setting: Setting, runs: Sequence[Measured], long: Sequence[Measured]) -> list[str]:
    """Who is ahead at the last target, tuned against tuned and untuned, by how much, and what is not yet run."""
    return [*_raced(setting, runs, "tuned"), *_raced(setting, runs, "untuned"), *_ended(long), *_missing(setting, runs)]


def _raced(setting: Setting, runs: Sequence[Measured], part: str) -> Iterator[str]:
    of = of_part(runs, part)
    level = setting.targets[-1]
    at = {entrant: mean([run.times[level] for run in mine]) for entrant, mine in of.items()}
    ours = at.get(OURS)
    if ours is None or not math.isfinite(ours):
        if ours is not None:
            yield f"{part}: {OURS} is not at {setting.target(level)} in every run."
        return
    there = {entrant: t for entrant, t in at.items() if entrant not in (OURS, LIMIT) and math.isfinite(t)}
    rivals = {entrant: t for entrant, t in there.items() if entrant not in LENT_TO}
    here = f"{part}, {setting.target(level)}"
    if rivals:
        best = min(rivals, key=rivals.__getitem__)
        yield f"{here}: {_against('the best other', best, ours, rivals[best])}{_noise(of, best, level)}."
    if lent := there.keys() - rivals.keys():
        best = min(lent, key=there.__getitem__)
        told = _against("the best to which parts of ours were lent", best, ours, there[best])
        yield f"{here}: {told}{_noise(of, best, level)}."
    if ROUNDS in rivals:
        yield f"{here}: {OURS} takes 1/{rivals[ROUNDS] / ours:.1f} of {ROUNDS}'s time ({rivals[ROUNDS]:.3f})."
    elif ROUNDS in at:
        count = sum(math.isfinite(run.times[level]) for run in of[ROUNDS])
        how = f"in {count} of {len(of[ROUNDS])} runs there" if count else "not there"
        yield f"{here}: {ROUNDS} is {how} by time {setting.horizon:g}, {setting.horizon / ours:.1f} x {OURS}'s."
    if math.isfinite(limit := at.get(LIMIT, math.inf)):
        yield f"{here}: the limit is {limit:.3f}, {OURS} takes {ours / limit:.1f} x that."


def _against(who: str, name: str, ours: float, its: float) -> str:
    if its >= ours:
        return f"{OURS} is there at {ours:.3f}, {its / ours:.2f} x as fast as {who}, {name} ({its:.3f})"
    return f"{name} WINS, there at {its:.3f}, {ours / its:.2f} x as fast as {OURS} ({ours:.3f})"


def _noise(of: Mapping[str, Sequence[Measured]], best: str, level: float) -> str:
    p = welch([run.times[level] for run in of[OURS]], [run.times[level] for run in of[best]])
    return "" if p is None else f", p = {p:.2g}" + ("" if significant(p) else ", within the noise")


def _ended(long: Sequence[Measured]) -> Iterator[str]:
    """Whether ours ends below FedAvg."""
    of = of_part(long, "long")
    if not {OURS, ROUNDS} <= of.keys():
        return
    ours, rounds = ([100 * run.accuracy for run in of[name]] for name in (OURS, ROUNDS))
    p = welch(ours, rounds)
    than = "below" if mean(ours) < mean(rounds) else "not below"
    noise = "one seed, no test" if p is None else f"p = {p:.2g}" + ("" if significant(p) else ", within the noise")
    yield f"in the end: {OURS} {mean(ours):.2f} %, {than} {ROUNDS} {mean(rounds):.2f} % ({noise})."


def _missing(setting: Setting, runs: Sequence[Measured]) -> Iterator[str]:
    refused = {name: why for name, entrant in ENTRANTS.items() if (why := entrant.refusal(setting)) is not None}
    yield from (f"{name} cannot be run here: {why}." for name, why in refused.items())
    for part in ("tuned", "untuned"):
        there = of_part(runs, part)
        untold = {*refused, *(() if part == "tuned" else (LIMIT,))}
        if missing := [name for name in ENTRANTS if name not in there and name not in untold]:
            yield f"not run, {part}: {', '.join(missing)}."
