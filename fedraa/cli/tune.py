"""The output of `fedraa tune`: a line per trial, then a table with the best values of each method."""

from collections.abc import Sequence
from datetime import timedelta
from shlex import join, quote
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa.cli.console import print_line, print_table, printing_results
from fedraa.components.text import text_of
from fedraa.config.experiment import Experiment
from fedraa.numbers import format_count
from fedraa.report.command import set_options
from fedraa.tuning.journal import Trial
from fedraa.tuning.tuner import Tuned, tune
from fedraa.waiting import Waiting


def run_tuning(
    methods: Sequence[str],
    space: Sequence[str],
    trials: int,
    experiment: Experiment,
    jobs: int,
    waiting: Waiting | None,
) -> None:
    """Tune the hyperparameters of the methods, and print the progress and the best values.

    Args:
        methods: Names of methods.
        space: The search space: texts in the form of the option `--space`.
        trials: The number of trials of each method.
        experiment: Data, devices, limits and seed of all trials.
        jobs: The number of trials that run at the same time.
        waiting: The status line, which shows the running trial; None for a quiet command, which prints nothing.
    """
    if waiting is None:
        tune(methods, space, trials, experiment, jobs=jobs)
        return

    def report_trial(trial: Trial, count: int, total: int, left: float) -> None:
        _print_trial(trial, count, total, left)
        waiting.say(f"running trial {min(count + 1, total)} of {total}")

    waiting.say(f"running trial 1 of {trials * len(methods)}")
    result = tune(methods, space, trials, experiment, jobs=jobs, ended=report_trial)
    waiting.end_display()
    with printing_results("the tuning", result.file):
        print_table(best_table(result))
        print_line(f"next: {_compare_command(methods, experiment, result)}")


def _compare_command(methods: Sequence[str], experiment: Experiment, result: Tuned) -> str:
    """Return the command that compares the methods with their best values, with other seeds than the search."""
    seeds = " ".join(str(experiment.seed + number) for number in (1, 2, 3))
    options = set_options(experiment, without=("seed", "validation"))
    terms = f"--terms tuned --tuned {quote(str(result.file))} --seeds {seeds}"
    return f"fedraa compare {join(methods)} {terms} {options}".rstrip()


def _print_trial(trial: Trial, count: int, total: int, left: float) -> None:
    text = f"trial {count} of {total}: {trial.method} at {_values_text(trial.values)}: {_outcome_text(trial)}"
    if count < total:
        text += f"; about {timedelta(seconds=round(left))} left"
    print_line(text)


def _outcome_text(trial: Trial) -> str:
    if trial.state == "failed":
        return f"failed, {trial.why}"
    if trial.state == "stopped":
        tenth, value = list(trial.curve.items())[-1]
        return f"stopped at {value:.4f} after {tenth}0 % of the budget"
    if trial.steps == 0:
        return f"{trial.value:.4f}, untrained: the budget ends before its first update"
    if trial.reached is None:
        return f"{trial.value:.4f}"
    return f"{trial.value:.4f} at time {trial.reached:.4g}"


def _values_text(values: Any) -> str:
    return " ".join(f"{name}={text_of(value)}" for name, value in values.items())


def best_table(result: Tuned) -> Table:
    """Return a table with the best trial of each method.

    An asterisk marks a value at the edge of the search space.
    """
    metric = result.table.columns[3]
    has_failed = (result.table["state"] == "failed").any()
    headings = ("method", "best at", str(metric), "trials", "stopped early", *(["failed"] if has_failed else []))
    table = Table(*headings, box=box.SIMPLE_HEAD)
    for method, values in result.terms.items():
        rows = result.table[result.table["method"] == method]
        texts = []
        for name, value in values.items():
            mark = "*" if name in result.at_edge[method] else ""
            texts.append(f"{name}={text_of(value)}{mark}")
        best = rows[rows["trial"] == result.best[method]][metric].iloc[0]
        cells = [escape(method), escape(" ".join(texts)), f"{best:.4f}", str(len(rows))]
        cells.append(str((rows["state"] == "stopped").sum()))
        if has_failed:
            cells.append(str((rows["state"] == "failed").sum()))
        table.add_row(*cells)
    notes = []
    if any(result.at_edge.values()):
        notes.append("* at the edge of the space: the best value may be outside; tune again with a wider space")
    for method, count in result.untrained.items():
        if count:
            trials = format_count(count, "trial")
            notes.append(f"{method}: {trials} ended before the first update; give a larger budget")
    if notes:
        table.caption = escape("\n".join(notes))
        table.caption_justify = "left"
    return table
