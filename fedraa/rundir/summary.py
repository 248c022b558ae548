"""Totals of a log that has ended, for summary.json."""

from typing import Any

import numpy as np

from fedraa.rundir.history import History
from fedraa.server.bad_clients import QUARANTINED


def summarise(history: History) -> dict[str, object]:
    """Totals of a log that has ended, which is read line by line."""
    end: dict[str, Any] = {}
    tasks = faults = drops = down = up = stale = most_stale = 0
    quarantined: list[int] = []
    flops = 0.0
    for line in history.stream():
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
                drops += 1
                quarantined += [line["client"]] * (line["action"] == QUARANTINED)
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
        **({"dropped": drops, "quarantined": quarantined} if drops else {}),
        "model_sha256": end["model_sha256"],
        **({"metrics": own} if own else {}),
    }


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
