"""The output of `fedraa compare`: a line per run, then a table with one row per method."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from shlex import quote

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa import api
from fedraa.callbacks import ProgressBar
from fedraa.cli.console import print_line, print_table, printing_results
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.errors import plain_text
from fedraa.numbers import format_count, format_quantity
from fedraa.objectives import MetricSpec
from fedraa.objectives.metric_spec import metric_heading
from fedraa.report.cells import DEFAULT_TIME
from fedraa.report.compare import (
    CELLS,
    DIFFERENCES,
    FROM_SUMMARY,
    OPTIONAL,
    PER_CELL,
    PLOT,
    mean_interval,
    mean_time,
    run_row,
)
from fedraa.report.runs import value_text
from fedraa.report.statistics import mean_count_text
from fedraa.rundir.config_file import time_heading
from fedraa.rundir.history import History
from fedraa.rundir.summary import NO_STEP
from fedraa.settings.terms import Terms, paper_settings
from fedraa.waiting import Waiting, is_shown


def run_comparison(
    methods: Sequence[str],
    seeds: Sequence[int],
    experiment: Experiment,
    terms: Terms | None = None,
    tuned: Path | None = None,
    waiting: Waiting | None = None,
) -> None:
    """Run every method with every seed, and print the results unless the experiment is `quiet`.

    Args:
        methods: The names of the methods.
        seeds: The seeds.
        experiment: The settings that all methods share.
        terms: The source of the settings that no option sets: `equal`, `paper` or `tuned`; None for each method's
            defaults.
        tuned: The file that `fedraa tune` wrote; only the terms `tuned` need it.
        waiting: The status line that shows the current preparation; None to show none.
    """
    if experiment.quiet:
        api.compare(methods, seeds, experiment, terms=terms, tuned=tuned)
        return
    bar = ProgressBar(waiting)
    if waiting is not None and not is_shown():
        waiting.end_display()
    printer = _ResultPrinter(len(methods) * len(seeds), bar)
    frame = api.compare(methods, seeds, experiment, terms=terms, tuned=tuned, callbacks=[bar], ended=printer)
    metric_spec = History(frame["directory"].iloc[0]).metric_spec
    with printing_results("the comparison", printer.folder):
        if len(methods) > 1:
            on_terms = f"on {terms} terms" if terms else "with the default values of each method"
            print_table(differences_table(pd.read_csv(printer.folder / DIFFERENCES, dtype=str), on_terms))
        if terms == "paper":
            for method in methods:
                print_line(_paper_text(method))
        print_table(summary_table(frame, experiment, metric_spec))
        print_line(f"runs, {CELLS}, {DIFFERENCES} and {PLOT} are in {printer.folder}")
        folder = quote(str(printer.folder))
        print_line(f"next: fedraa report {folder}; fedraa board {folder}")


def differences_table(frame: pd.DataFrame, on_terms: str) -> Table:
    """Return a table of the settings in which the methods differ.

    Args:
        frame: The columns setting, value and methods, with one row per value of a setting.
        on_terms: The end of the table's title, such as `on equal terms`.
    """
    table = Table("setting", "value", "methods", title=f"differences {on_terms}", box=box.SIMPLE_HEAD)
    previous = None
    for setting, value, methods in frame.itertuples(index=False):
        table.add_row("" if setting == previous else setting, escape(value), escape(methods))
        previous = setting
    return table


def _paper_text(method: str) -> str:
    """Return a text that names the source of the method's settings, and the settings that the paper does not state."""
    paper = paper_settings(find_method(method))
    if not paper.unstated:
        return f"{method}: {paper.source}"
    return f"{method}: {paper.source}; the paper does not state {paper.unstated}"


class _ResultPrinter:
    """An object that prints the result of each finished run, and the remaining time.

    This object also shows the number of the current run, such as `run 2/6`, in the progress bar.
    """

    def __init__(self, count: int, bar: ProgressBar) -> None:
        self.folder = Path()
        self._count = count
        self._ended = 0
        self._started = time.monotonic()
        self._bar = bar
        self._label_bar()

    def _label_bar(self) -> None:
        if self._count > 1:
            self._bar.place = f"run {self._ended + 1}/{self._count}"

    def __call__(self, history: History) -> None:
        self.folder = history.directory.parent
        self._ended += 1
        self._label_bar()
        remaining = (time.monotonic() - self._started) / self._ended * (self._count - self._ended)
        text = f"run {self._ended} of {self._count}: {_result_line(run_row(history), history.metric_spec.main)}"
        if remaining:
            text += f"; about {timedelta(seconds=round(remaining))} left"
        print_line(text)


def _result_line(row: dict[str, object], main: str) -> str:
    text = (
        f"{row['method']} seed {row['seed']}: {main} {row[main]:.4f} at time {row['time']:.4g} "
        f"after {format_count(int(str(row['steps'])), 'step')}, ended by {row['reason']}"
    )
    if row["steps"]:
        return text
    return f"{text}: {row['note']}"


def _name_and_note_if_untrained(method: str, group: pd.DataFrame) -> str:
    count = int((group["steps"] == 0).sum())
    if not count:
        return method
    if count == len(group):
        return f"{method} ({NO_STEP})"
    return f"{method} ({NO_STEP} in {count} of {len(group)})"


def summary_table(frame: pd.DataFrame, experiment: Experiment, metric_spec: MetricSpec | None = None) -> Table:
    """Return a table with a row per method: means and 95 % intervals over the method's seeds.

    Args:
        frame: The table of runs, as in compare.csv.
        experiment: The options that all methods share.
        metric_spec: The metrics of the runs; None for the metrics of a classification.
    """
    metrics = metric_spec or MetricSpec()
    main = metrics.main
    target = experiment.target or experiment.target_accuracy
    options = dict(experiment)
    to_target = []
    if target is not None:
        to_target = [time_heading(f"time to {plain_text(target)}", options), "ratio"]
    table = Table(title=_summary_title(frame, experiment), box=box.SIMPLE_HEAD)
    table.add_column("method")
    known = (*PER_CELL, *FROM_SUMMARY, *OPTIONAL, main, f"best_{main}")
    further = [name for name in frame.columns if name not in known]
    has_energy = "energy" in frame.columns
    for name in (
        metric_heading(main),
        "worst client",
        *further,
        *to_target,
        time_heading("time", options),
        "steps",
        "sent",
        "computed",
        *(["energy"] if has_energy else []),
        "staleness",
    ):
        table.add_column(name, justify="right")
    groups = {str(method): group for method, group in frame.groupby("method", sort=False)}
    base = mean_time(next(iter(groups.values())))
    for method, group in groups.items():
        texts = [mean_interval(group[name], ".4f", metrics.bounds(name)) for name in (main, "client_worst")]
        texts += [mean_interval(group[name], ".4g", metrics.bounds(name)) for name in further]
        if target is not None:
            texts += _time_to_target_cells(group, base)
        sent = format_quantity((group["bytes_down"] + group["bytes_up"]).mean(), "B")
        staleness = f"{group['staleness_mean'].mean():.2f}, max {group['staleness_max'].max()}"
        texts += [mean_interval(group["time"], ".4g"), mean_count_text(group["steps"].mean()), sent]
        texts.append(format_quantity(group["flops"].mean(), "FLOP"))
        if has_energy:
            texts.append(_energy_text(group))
        table.add_row(_name_and_note_if_untrained(method, group), *texts, staleness)
    return table


def _energy_text(group: pd.DataFrame) -> str:
    """Return the mean energy of a method's runs in joules; a dash if it is unknown."""
    energy = group["energy"]
    if energy.isna().any():
        return "–"
    return format_quantity(energy.mean(), "J")


def _summary_title(frame: pd.DataFrame, experiment: Experiment) -> str:
    seeds = frame["seed"].nunique()
    spread = f"mean [95 % interval] over n = {seeds} seeds" if seeds > 1 else "one seed"
    limits = {name: getattr(experiment, name) for name in ("updates", "rounds", "time")}
    budget = " · ".join(f"{name} {value_text(value)}" for name, value in limits.items() if value)
    return f"{experiment.dataset}: {spread}, budget {budget or f'time {DEFAULT_TIME:g}'}"


def _time_to_target_cells(group: pd.DataFrame, base: float | None) -> list[str]:
    """Return the time to the target, and its ratio to `base`, the time of the first method.

    If a run did not reach the target, the first cell is the number of runs that did.
    """
    mean = mean_time(group)
    if mean is None:
        return [f"reached in {group['time_to_target'].notna().sum()} of {len(group)}", "–"]
    ratio = "–"
    if base:
        ratio = f"{mean / base:.2f}"
    return [mean_interval(group["time_to_target"], ".4g"), ratio]
