"""The files of a comparison: compare.csv and a plot."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedraa.callbacks.events import Limits
from fedraa.engine.resume import check_same_run
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError
from fedraa.numbers import format_count
from fedraa.objectives import MetricSpec
from fedraa.objectives.metric_spec import NOT_NEGATIVE, Bounds
from fedraa.report.comparison_frame import Comparison
from fedraa.report.curves import plot_curves
from fedraa.report.differences import setting_differences
from fedraa.report.runs import custom_metrics_of, refuse_changed
from fedraa.report.statistics import estimate_text
from fedraa.rundir.atomic_files import write_text
from fedraa.rundir.config_file import time_axis_label
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History, method_name
from fedraa.rundir.reserved_directory import refuse_used
from fedraa.rundir.run_lock import WRITER

CELLS, PLOT, DIFFERENCES = "compare.csv", "compare.png", "differences.csv"
FROM_SUMMARY = (
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
# Columns that only some runs have.
OPTIONAL = ("energy",)
PER_CELL = ("method", "seed", "directory", "note")


def metric_columns(metric_spec: MetricSpec) -> tuple[str, ...]:
    """Return the columns of compare.csv with the objective's metrics, the main metric first."""
    return tuple(dict.fromkeys((metric_spec.main, f"best_{metric_spec.main}", *metric_spec.names)))


def run_row(history: History) -> dict[str, object]:
    """Return the row of compare.csv for a finished run."""
    total = history.summary
    return {
        "method": method_name(history.config),
        "seed": history.experiment.seed,
        **{name: total[name] for name in (*metric_columns(history.metric_spec), *FROM_SUMMARY)},
        **{name: total[name] for name in OPTIONAL if name in total},
        **custom_metrics_of(total),
        "note": total.get("note", np.nan),
        "directory": history.directory.name,
    }


def refuse_other_runs(folder: Path, names: Sequence[str]) -> None:
    """Raise InputError if a folder has other files than those of a comparison with these run directories."""
    others = {path.name for path in folder.iterdir()} - {*names, CELLS, PLOT, DIFFERENCES, WRITER}
    if others:
        raise InputError(
            "out",
            f"{folder} has {min(others)}, which is not part of this comparison",
            hint="choose another directory, or give the same methods and seeds to continue",
        )


def check_begun_run(directory: Path, spec: RunSpec) -> None:
    """Raise InputError if the comparison cannot use the run of a directory.

    This is the case if the run has other settings, if it has ended and its files were changed, or if the directory has
    files that are not of a run.
    """
    if not (directory / CONFIG).exists():
        refuse_used(directory)
        return
    check_same_run(directory, spec)
    if (directory / SUMMARY).exists():
        refuse_changed(directory)


def write_comparison(histories: Sequence[History], directory: Path, dataset: str) -> Comparison:
    """Write the table and the plot of these runs, and return the table.

    In the returned table `directory` is the path of a run. In the file it is the name below the folder of the file.

    Args:
        histories: The runs.
        directory: The folder of the files.
        dataset: The name of the data in the plot's title.
    """
    frame = pd.DataFrame([run_row(history) for history in histories])
    write_text(directory / CELLS, frame.to_csv(index=False))
    frame["directory"] = [str(history.directory) for history in histories]
    compared = {method_name(history.config): history.experiment for history in histories}
    write_text(directory / DIFFERENCES, setting_differences(compared.items()).to_csv(index=False))
    evals = dict[str, list[pd.DataFrame]]()
    for history in histories:
        evals.setdefault(method_name(history.config), []).append(history.evals)
    experiment = histories[0].experiment
    seeds = frame["seed"].unique()
    over = f"mean and range over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    title = f"{dataset}, {format_count(experiment.client_count, 'client')}, {over}"
    main = histories[0].metric_spec.main
    target = Limits.of(histories[0].config["resolved"]["limits"]).goal
    level = None
    if target is not None and target.name == main:
        level = target.value
    time_label = time_axis_label(histories[0].config["experiment"])
    plot_curves(evals, directory / PLOT, title=title, time_label=time_label, target=level, column=main)
    return Comparison.of(frame, directory, PLOT, main)


def mean_time(group: pd.DataFrame) -> float | None:
    """Return the mean time to the target over seeds; None if a seed did not reach the target."""
    times = group["time_to_target"].astype(float)
    if times.isna().any():
        return None
    return float(times.mean())


def mean_interval(values: pd.Series, form: str, bounds: Bounds = NOT_NEGATIVE) -> str:
    """Return the mean over seeds and its 95 % interval; a dash if a value is not finite.

    Args:
        values: The values, one per seed.
        form: The format of a number.
        bounds: The possible values, to which the interval is clipped.
    """
    numbers = values.to_numpy(np.float64)
    if not np.isfinite(numbers).all():
        return "–"
    return estimate_text(numbers, lambda value: format(value, form), bounds)
