"""Several methods under the same flags, seeds and budget: one table, one plot, one directory."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from fedraa.api import free_directory, run, session
from fedraa.cli.display import progress, quantity, say, show
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build
from fedraa.methods.catalog import find
from fedraa.methods.resolve import without_foreign_flags
from fedraa.report.curves import plot_curves
from fedraa.rundir.history import History

DEFAULT_TIME = 20.0
CELLS, PLOT = "compare.csv", "compare.png"
FROM_SUMMARY = (
    "accuracy",
    "best_accuracy",
    "client_worst",
    "reason",
    "steps",
    "tasks",
    "time",
    "wall",
    "time_to_target",
    "bytes_down",
    "bytes_up",
    "flops",
    "staleness_mean",
    "staleness_max",
    "faults",
    "model_sha256",
)


def compare(methods: Sequence[str], seeds: Sequence[int], experiment: Experiment) -> pd.DataFrame:
    """Run every method with every seed; returns one row per run, as in compare.csv.

    Every run lies in a directory of its own, `METHOD-SEED`, below the experiment's `out`. A flag that only
    some of the methods know is set for those. Raises ValueError before anything is started or written.
    """
    runs = cells(methods, seeds, experiment)
    directory = free_directory(experiment.model_copy(update={"method": "compare"}))
    for each in runs:
        build(each)
    rows, evals = [], dict[str, list[pd.DataFrame]]()
    with session(experiment):
        for each in runs:
            each = each.model_copy(update={"out": directory / f"{each.method}-{each.seed}"})
            with progress(each) as watch:
                history = run(each, watch=watch)
            rows.append(_row(each, history))
            evals.setdefault(each.method, []).append(history.evals)
            if not experiment.quiet:
                say(_line(rows[-1]))
    frame = pd.DataFrame(rows)
    frame.to_csv(directory / CELLS, index=False)
    seen = f"mean and range over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    title = f"{experiment.dataset}, {experiment.clients} clients, {seen}"
    plot_curves(evals, directory / PLOT, title=title, clock=experiment.clock, target=experiment.target_accuracy)
    if not experiment.quiet:
        show(summary_table(frame, experiment))
        say(f"runs, {CELLS} and {PLOT} are in {directory}")
    return frame


def cells(methods: Sequence[str], seeds: Sequence[int], experiment: Experiment) -> list[Experiment]:
    """One experiment per method and seed, each with the flags that its method knows and a budget."""
    for field, values in (("methods", methods), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{field}: got {' '.join(map(str, values)) or 'none'}; give one or more, each once")
    for field, instead in (("method", "methods"), ("seed", "seeds")):
        if (given := getattr(experiment, field)) != Experiment.model_fields[field].default:
            raise ValueError(f"{field}: got {given!r}; name the {instead} to compare with {instead}")
    for method in methods:
        find(method)
    if experiment.updates is experiment.rounds is experiment.time is None:
        experiment = experiment.model_copy(update={"time": DEFAULT_TIME})
    templates = [without_foreign_flags(experiment.model_copy(update={"method": method})) for method in methods]
    for field, value in experiment:
        if value is not None and field != "method" and all(getattr(each, field) != value for each in templates):
            raise ValueError(f"{field}: {value} means nothing to any of {', '.join(methods)}; leave it out")
    for each in templates:
        if each.updates is each.rounds is each.time is None:
            raise ValueError(
                f"updates: {each.method} counts its steps otherwise than the flags given; compare at equal "
                "--time, or give both --updates and --rounds"
            )
    return [Experiment(**each.model_dump() | {"seed": seed}) for each in templates for seed in seeds]


def _row(experiment: Experiment, history: History) -> dict[str, object]:
    total = history.summary
    row = {"method": experiment.method, "seed": experiment.seed}
    return row | {name: total[name] for name in FROM_SUMMARY} | {"directory": history.directory.name}


def _line(row: dict[str, object]) -> str:
    return (
        f"{row['method']} seed {row['seed']}: accuracy {row['accuracy']:.4f} at time {row['time']:.4g} "
        f"after {row['steps']} steps, ended by {row['reason']}"
    )


def summary_table(frame: pd.DataFrame, experiment: Experiment) -> Table:
    """One row per method: mean ± sample standard deviation over its seeds."""
    seeds = frame["seed"].nunique()
    target = experiment.target_accuracy
    budget = " · ".join(
        f"{name} {value:g}" for name in ("updates", "rounds", "time") if (value := getattr(experiment, name))
    )
    title = f"{experiment.dataset}: mean ± std over n = {seeds} seeds, budget {budget or f'time {DEFAULT_TIME:g}'}"
    to_target = [] if target is None else [f"time to {target:g}", "ratio"]
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("method")
    for name in ("accuracy", "worst client", *to_target, "time", "steps", "sent", "computed", "staleness"):
        table.add_column(name, justify="right")
    groups = {str(method): group for method, group in frame.groupby("method", sort=False)}
    base = mean_time(next(iter(groups.values())))
    for method, group in groups.items():
        texts = [mean_std(group["accuracy"], ".4f"), mean_std(group["client_worst"], ".4f")]
        if target is not None:
            mean = mean_time(group)
            reached = group["time_to_target"].notna().sum()
            texts += [
                f"reached in {reached} of {len(group)}" if mean is None else mean_std(group["time_to_target"], ".4g"),
                "–" if mean is None or not base else f"{mean / base:.2f}",
            ]
        sent = quantity((group["bytes_down"] + group["bytes_up"]).mean(), "B")
        staleness = f"{group['staleness_mean'].mean():.2f}, max {group['staleness_max'].max()}"
        texts += [mean_std(group["time"], ".4g"), f"{group['steps'].mean():.4g}", sent]
        table.add_row(method, *texts, quantity(group["flops"].mean(), "FLOP"), staleness)
    return table


def mean_time(group: pd.DataFrame) -> float | None:
    """Mean time to the target over a method's seeds; None unless every one of them reached it."""
    times = group["time_to_target"].astype(float)
    return None if times.isna().any() else float(times.mean())


def mean_std(values: pd.Series, form: str) -> str:
    """Mean ± sample standard deviation; the value alone where it is one."""
    numbers = values.to_numpy(np.float64)
    mean = format(float(numbers.mean()), form)
    return mean if np.ptp(numbers) == 0 else f"{mean} ± {format(float(numbers.std(ddof=1)), '.2g')}"
