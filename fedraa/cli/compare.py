"""The output of `fedraa compare`: every run while it trains and when it ends, then one row per method."""

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
from fedraa.cli.display import say, show
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.config.sections import StopOptions
from fedraa.numbers import quantity
from fedraa.objectives import Figures
from fedraa.report.cells import DEFAULT_TIME
from fedraa.report.compare import CELLS, DIFFERENCES, FROM_SUMMARY, PER_CELL, PLOT, mean_interval, mean_time, row
from fedraa.report.tables import heading
from fedraa.rundir.history import History
from fedraa.rundir.summary import NO_STEP
from fedraa.settings.terms import Terms, paper_settings
from fedraa.waiting import Waiting, is_shown


def compare(
    methods: Sequence[str],
    seeds: Sequence[int],
    experiment: Experiment,
    terms: Terms | None = None,
    tuned: Path | None = None,
    waiting: Waiting | None = None,
) -> None:
    """Run every method with every seed and print the results, unless the experiment is quiet.

    Args:
        methods: The names of the methods.
        seeds: The seeds.
        experiment: The settings that all methods share.
        terms: The source of settings that the flags leave open.
        tuned: The file of a tuning.
        waiting: The status line to use until the runs start.
    """
    if experiment.quiet:
        api.compare(methods, seeds, experiment, terms=terms, tuned=tuned)
        return
    bar = ProgressBar(waiting)
    if waiting is not None and not is_shown():
        waiting.over()
    teller = _Teller(len(methods) * len(seeds), bar)
    frame = api.compare(methods, seeds, experiment, terms=terms, tuned=tuned, callbacks=[bar], ended=teller)
    figures = History(teller.folder / frame["directory"].iloc[0]).figures
    if len(methods) > 1:
        on = f"on {terms} terms" if terms else "on each method's own terms"
        show(differences_table(pd.read_csv(teller.folder / DIFFERENCES, dtype=str), on))
    if terms == "paper":
        for method in methods:
            say(_of_paper(method))
    show(summary_table(frame, experiment.dataset, experiment, figures))
    say(f"runs, {CELLS}, {DIFFERENCES} and {PLOT} are in {teller.folder}")
    folder = quote(str(teller.folder))
    say(f"next: fedraa report {folder}; fedraa board {folder}")


def differences_table(frame: pd.DataFrame, where: str) -> Table:
    """Return a table of the remaining differences between the methods; `where` is the end of its title."""
    table = Table("setting", "value", "methods", title=f"what differs {where}", box=box.SIMPLE_HEAD)
    before = None
    for setting, value, who in frame.itertuples(index=False):
        table.add_row("" if setting == before else setting, escape(value), escape(who))
        before = setting
    return table


def _of_paper(method: str) -> str:
    """Return the source of a method's paper terms, and the settings that the paper leaves open."""
    paper = paper_settings(find(method))
    return f"{method}: {paper.source}" + (f"; it leaves open {paper.unstated}" if paper.unstated else "")


class _Teller:
    """A callback that prints the result of each of `count` runs, the number left and the remaining time, and labels
    `bar`.
    """

    def __init__(self, count: int, bar: ProgressBar) -> None:
        self._count, self._ended, self._started = count, 0, time.monotonic()
        self.folder, self._bar = Path(), bar
        self._place()

    def _place(self) -> None:
        self._bar.place = f"run {self._ended + 1}/{self._count}" if self._count > 1 else ""

    def __call__(self, history: History) -> None:
        self.folder = history.directory.parent
        self._ended += 1
        self._place()
        left = (time.monotonic() - self._started) / self._ended * (self._count - self._ended)
        more = f"; about {timedelta(seconds=round(left))} to go" if left else ""
        say(f"run {self._ended} of {self._count}: {_line(row(history), history.figures.main)}{more}")


def _line(row: dict[str, object], main: str) -> str:
    return (
        f"{row['method']} seed {row['seed']}: {main} {row[main]:.4f} at time {row['time']:.4g} "
        f"after {row['steps']} steps, ended by {row['reason']}" + ("" if row["steps"] else f": {row['note']}")
    )


def _marked(method: str, group: pd.DataFrame) -> str:
    """Return the method's name, with a mark if some of its runs have finished no step."""
    count = int((group["steps"] == 0).sum())
    if not count:
        return method
    return f"{method} ({NO_STEP}{'' if count == len(group) else f' in {count} of {len(group)}'})"


def summary_table(frame: pd.DataFrame, dataset: str, stop: StopOptions, figures: Figures | None = None) -> Table:
    """Return a table with a row per method: means and 95 % intervals over its seeds.

    Args:
        frame: The table of runs, as in compare.csv.
        dataset: The name of the dataset.
        stop: The limits that all methods share.
        figures: The metrics of the runs; None for those of a classification.
    """
    seeds = frame["seed"].nunique()
    metrics = figures or Figures()
    main = metrics.main
    target = stop.target or stop.target_accuracy
    budget = " · ".join(f"{name} {value:g}" for name in ("updates", "rounds", "time") if (value := getattr(stop, name)))
    spread = f"mean [95 % interval] over n = {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{dataset}: {spread}, budget {budget or f'time {DEFAULT_TIME:g}'}"
    to_target = (
        [] if target is None else [f"time to {target}" if isinstance(target, str) else f"time to {target:g}", "ratio"]
    )
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("method")
    own = [name for name in frame.columns if name not in (*PER_CELL, *FROM_SUMMARY, main, f"best_{main}")]
    for name in (heading(main), "worst client", *own, *to_target, "time", "steps", "sent", "computed", "staleness"):
        table.add_column(name, justify="right")
    groups = {str(method): group for method, group in frame.groupby("method", sort=False)}
    base = mean_time(next(iter(groups.values())))
    for method, group in groups.items():
        texts = [mean_interval(group[name], ".4f", metrics.better(name)) for name in (main, "client_worst")]
        texts += [mean_interval(group[name], ".4g", metrics.better(name)) for name in own]
        if target is not None:
            mean = mean_time(group)
            reached = group["time_to_target"].notna().sum()
            texts += [
                mean_interval(group["time_to_target"], ".4g") if mean else f"reached in {reached} of {len(group)}",
                f"{mean / base:.2f}" if mean and base else "–",
            ]
        sent = quantity((group["bytes_down"] + group["bytes_up"]).mean(), "B")
        staleness = f"{group['staleness_mean'].mean():.2f}, max {group['staleness_max'].max()}"
        texts += [mean_interval(group["time"], ".4g"), f"{group['steps'].mean():.4g}", sent]
        table.add_row(_marked(method, group), *texts, quantity(group["flops"].mean(), "FLOP"), staleness)
    return table
