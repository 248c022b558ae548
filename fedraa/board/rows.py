"""The row of each run in the page's table, and the comparison of several runs' options."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedraa.board.about import About
from fedraa.board.sampling import json_number
from fedraa.board.watched_run import WatchedRun
from fedraa.rundir.config_file import PROBLEM

# The comparison shows these options in separate columns.
OWN_COLUMNS = {"method", "dataset"}


def make_row(run: WatchedRun) -> dict[str, Any]:
    """Return the row of a run in the table of runs, for JSON."""
    with run.lock:
        state = {"id": run.name, "state": run.state, "detail": run.detail, "version": run.version}
        if run.about is None:
            return state
        about, stats, log = run.about, run.stats, run.timeline
        return state | {
            "method": about.method,
            "dataset": about.dataset,
            "problem": repr([about.flags.get(name) for name in PROBLEM]),
            "seed": about.seed,
            "clients": about.clients,
            "clock": about.clock,
            "unit": about.unit,
            "columns": list(about.metric_spec.columns),
            "main": about.metric_spec.main,
            "less": [name for name in about.metric_spec.columns if about.metric_spec.better(name) == "min"],
            **_metric_columns(run, about),
            "step": max(stats.step, _last_value(run, "step") or 0),
            "t": json_number(max(log.t, _last_value(run, "t") or 0.0)),
            "wall": json_number(max(stats.wall, _last_value(run, "wall") or 0.0)),
            "share": json_number(about.limits.completed_fraction(stats.step, log.t)),
            "started": about.started,
            "tasks": stats.committed,
            "in_flight": log.in_flight,
            "bytes": stats.bytes_down + stats.bytes_up,
            "flops": stats.flops,
            "energy": stats.energy,
            "staleness": json_number(stats.staleness_mean),
            "idle": json_number(log.idle_fraction(about.clients)),
            "faults": stats.faults,
            "drops": stats.failures.tasks,
            "rounds": stats.rounds,
            "to_target": run.summary.get("time_to_target"),
        }


def _metric_columns(run: WatchedRun, about: About) -> dict[str, Any]:
    """Return the last value of every metric, and the best value of the main metric."""
    evaluations = run.evaluations
    metric_spec = about.metric_spec
    if evaluations is None or not len(evaluations):
        return {"last": {}, "best": None}
    values = evaluations.column(metric_spec.main)
    values = values[np.isfinite(values)]
    best = json_number(metric_spec.best(values)) if len(values) else None
    return {"last": {name: json_number(_last_value(run, name)) for name in metric_spec.columns}, "best": best}


def _last_value(run: WatchedRun, name: str) -> float | None:
    """Return the last value of a column of the evaluations; None before the first evaluation."""
    if run.evaluations is None or len(run.evaluations) == 0:
        return None
    return float(run.evaluations.column(name)[-1])


def compare_flags(runs: Sequence[WatchedRun]) -> dict[str, Any]:
    """Return the options in which the runs differ, and the command that repeats each run.

    Options that vary between repetitions, such as the seed, are not compared.
    """
    from fedraa.board.of_reports import PER_RUN, default_options, repeat_command, value_text

    known = {run.name: run.about for run in runs if run.about is not None}
    flags = {name: {**default_options(), **about.flags} for name, about in known.items()}
    names = [name for name in default_options() if name not in OWN_COLUMNS | PER_RUN]
    differ = [name for name in names if len({repr(of_run.get(name)) for of_run in flags.values()}) > 1]
    return {
        "flags": differ,
        "values": {name: [value_text(of_run.get(flag)) for flag in differ] for name, of_run in flags.items()},
        "commands": {name: repeat_command(about.flags, about.given) for name, about in known.items()},
    }
