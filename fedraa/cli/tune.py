"""The output of `fedraa tune`: every trial when it ends, then the best values of each method."""

from collections.abc import Sequence
from datetime import timedelta
from shlex import join, quote
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa.cli.display import say, show
from fedraa.components.text import text_of
from fedraa.config.experiment import Experiment
from fedraa.tuning.journal import Trial
from fedraa.tuning.tuner import Tuned
from fedraa.tuning.tuner import tune as tuned_by
from fedraa.waiting import Waiting


def tune(
    methods: Sequence[str],
    space: Sequence[str],
    trials: int,
    experiment: Experiment,
    jobs: int,
    waiting: Waiting | None = None,
) -> None:
    """Tune, and print how far it is and the best values, unless the experiment is quiet.

    Args:
        methods: Names of methods.
        space: The values to try, as the flag takes them.
        trials: The number for each method.
        experiment: Data, devices, budget and seed of all trials.
        jobs: The number of trials at a time.
        waiting: Shows which trial is at work.
    """
    if experiment.quiet or waiting is None:
        tuned_by(methods, space, trials, experiment, jobs=jobs)
        return

    def tell(trial: Trial, count: int, total: int, left: float) -> None:
        _tell(trial, count, total, left)
        waiting.say(f"trial {min(count + 1, total)} of {total} is at work")

    waiting.say(f"trial 1 of {trials * len(methods)} is at work")
    found = tuned_by(methods, space, trials, experiment, jobs=jobs, ended=tell)
    waiting.over()
    show(best_table(found))
    say(f"next: fedraa compare {join(methods)} --terms tuned --tuned {quote(str(found.file))}")


def _tell(trial: Trial, count: int, total: int, left: float) -> None:
    """Print one line of progress."""
    more = f"; about {timedelta(seconds=round(left))} to go" if count < total else ""
    say(f"trial {count} of {total}: {trial.method} at {_listed(trial.values)}: {_outcome(trial)}{more}")


def _outcome(trial: Trial) -> str:
    if trial.state == "failed":
        return f"failed, {trial.why}"
    if trial.state == "stopped":
        tenth, value = list(trial.curve.items())[-1]
        return f"given up at {value:.4f} after {tenth}0 % of the budget"
    if trial.steps == 0:
        return f"{trial.value:.4f}, untrained: the budget ends before its first update"
    return f"{trial.value:.4f}" + ("" if trial.reached is None else f" at time {trial.reached:.4g}")


def _listed(values: Any) -> str:
    return " ".join(f"{name}={text_of(value)}" for name, value in values.items())


def best_table(found: Tuned) -> Table:
    """Return a table with a row per method: its best trial. A * marks a value at the edge of the space."""
    figure = found.table.columns[3]
    table = Table("method", "best at", str(figure), "trials", "given up", box=box.SIMPLE_HEAD)
    for method, terms in found.terms.items():
        rows = found.table[found.table["method"] == method]
        marks = {name: "*" if name in found.at_edge[method] else "" for name in terms}
        values = " ".join(f"{name}={text_of(value)}{marks[name]}" for name, value in terms.items())
        best = rows[rows["trial"] == found.best[method]][figure].iloc[0]
        given_up = str(int((rows["state"] == "stopped").sum()))
        table.add_row(escape(method), escape(values), f"{best:.4f}", str(len(rows)), given_up)
    notes = ["* at the edge of the space: the best may be beyond it; tune again with a wider one"]
    notes = notes if any(found.at_edge.values()) else []
    notes += [
        f"{method}: {count} trials ended before their first update; give a larger budget"
        for method, count in found.untrained.items()
        if count
    ]
    table.caption = escape("\n".join(notes)) if notes else None
    return table
