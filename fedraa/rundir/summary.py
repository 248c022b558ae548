"""Totals of a log that has ended, for summary.json."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedraa.errors import InputError
from fedraa.rundir.failures import Failures
from fedraa.rundir.history import History

NO_STEP = "no step was finished"


def summarise(history: History) -> dict[str, object]:
    """Totals of a log that has ended, which is read line by line."""
    return _totals(history, history.stream())


def so_far(history: History) -> dict[str, object]:
    """The same of a run that has not ended, whose `reason` is how it stands, and whose model has no digest.

    Raises ValueError for one that has no evaluation yet.
    """
    if history.evals.empty:
        raise InputError("run", f"{history.directory} has no evaluation yet", hint="wait for the first one")
    lines: list[dict[str, Any]] = history.whole_lines()
    step = next((line["step"] for line in reversed(lines) if "step" in line), 0)
    now = {"t": lines[-1]["t"], "wall": lines[-1]["wall"], "step": step}
    end = {"kind": "end", "reason": history.state, "model_sha256": "", **now}
    return _totals(history, [*lines, end]) | {"time_to_target": None}


def _totals(history: History, lines: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    end: Mapping[str, Any] = {}
    tasks = faults = down = up = stale = most_stale = 0
    failures = Failures()
    flops = 0.0
    for line in lines:
        match line["kind"]:
            case "dispatch":
                down += line["bytes_down"]
            case "commit":
                tasks += 1
                up += line["bytes_up"]
                flops += line["flops"]
                stale += line["staleness"]
                most_stale = max(most_stale, line["staleness"])
            case "drop":
                failures.add(line)
            case "fault":
                faults += 1
        end = line
    evals = history.evals
    figures = history.figures
    last = {name: float(evals[name].iloc[-1]) for name in figures.names}
    own = {name: _finite_or_none(evals[name].iloc[-1]) for name in figures.own}
    return {
        "method": history.config["experiment"]["method"],
        "reason": end["reason"],
        **({"by": end["by"]} if "by" in end else {}),
        **({} if end["step"] else {"note": NO_STEP}),
        "steps": end["step"],
        "tasks": tasks,
        "time": end["t"],
        "wall": end["wall"],
        **last,
        f"best_{figures.main}": figures.best(evals[figures.main]),
        "loss": float(evals["loss"].iloc[-1]),
        "client_worst": float(evals["client_worst"].iloc[-1]),
        "bytes_down": down,
        "bytes_up": up,
        "flops": float(flops),
        "staleness_mean": stale / max(1, tasks),
        "staleness_max": most_stale,
        "faults": faults,
        **failures.totals(),
        "model_sha256": end["model_sha256"],
        **({"metrics": own} if own else {}),
    }


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
