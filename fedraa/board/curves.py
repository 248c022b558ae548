"""Curves of a metric over time, steps or traffic, with as many points as a plot can show."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedraa.board.sampling import json_number, json_numbers, thin_curve, visible_range
from fedraa.board.watched_run import WatchedRun
from fedraa.errors import InputError
from fedraa.messages import Floats
from fedraa.rundir.task_timeline import TaskTimeline

ACROSS = ("t", "wall", "step", "bytes")


def make_curves(runs: Sequence[WatchedRun], x: str, y: str, low: float, high: float) -> list[dict[str, Any]]:
    """Return a curve for every run that has the metric `y`: its points, its best point and the version of the run.

    The version is a number that grows with every change of the run.

    Args:
        runs: The runs.
        x: The horizontal axis: `t` (the run's clock), `wall` (real time), `step` or `bytes` (traffic).
        y: Name of the metric.
        low: Lowest value of `x` to return.
        high: Highest value of `x` to return.

    Raises:
        InputError: `x` is not the name of an axis.
    """
    if x not in ACROSS:
        raise InputError("x", got=x, expected=f"one of {', '.join(ACROSS)}")
    answers = [_make_curve(run, x, y, low, high) for run in runs]
    return [curve for curve in answers if curve is not None]


def _make_curve(run: WatchedRun, x: str, y: str, low: float, high: float) -> dict[str, Any] | None:
    with run.lock:
        about = run.about
        evaluations = run.evaluations
        if about is None or evaluations is None or y not in evaluations.names:
            return None
        version = run.version
        values = evaluations.column(y)
        across = evaluations.column("t" if x == "bytes" else x)
        if x == "bytes":
            across = bytes_by(run.timeline, across)
    known = ~np.isnan(across)
    across, values = across[known], values[known]
    finite = np.flatnonzero(np.isfinite(values))
    shown = visible_range(across, low, high)
    best = None
    if len(finite):
        choose = np.argmin if about.metric_spec.better(y) == "min" else np.argmax
        place = finite[choose(values[finite])]
        best = {"x": json_number(across[place]), "y": json_number(values[place])}
    across, values = across[shown], values[shown]
    points = thin_curve(values)
    return {
        "id": run.name,
        "version": version,
        "x": json_numbers(across[points]),
        "y": json_numbers(values[points]),
        "best": best,
        "points": len(values),
    }


def bytes_by(timeline: TaskTimeline, t: Floats) -> Floats:
    """Return, for each time in `t`, the bytes of all tasks that were committed by then.

    The result is NaN after the last event that the board has read.
    """
    return np.where(t <= timeline.t, timeline.bytes_until(t), np.nan)
