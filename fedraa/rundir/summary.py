"""Totals of a log that has ended, for summary.json."""

import numpy as np

from fedraa.rundir.history import History


def summarise(history: History) -> dict[str, object]:
    """Totals of a log that has ended."""
    lines = history.lines()
    end = lines[-1]
    commits = [line for line in lines if line["kind"] == "commit"]
    staleness = [_int(line["staleness"]) for line in commits] or [0]
    evals = history.evals
    figures = history.figures
    last = {name: float(evals[name].iloc[-1]) for name in figures.names}
    own = {name: _finite_or_none(evals[name].iloc[-1]) for name in figures.own}
    return {
        "method": history.config["experiment"]["method"],
        "reason": end["reason"],
        **({"by": end["by"]} if "by" in end else {}),
        "steps": end["step"],
        "tasks": len(commits),
        "time": end["t"],
        "wall": end["wall"],
        **last,
        f"best_{figures.main}": figures.best(evals[figures.main]),
        "loss": float(evals["loss"].iloc[-1]),
        "client_worst": float(evals["client_worst"].iloc[-1]),
        "bytes_down": sum(_int(line["bytes_down"]) for line in lines if line["kind"] == "dispatch"),
        "bytes_up": sum(_int(line["bytes_up"]) for line in commits),
        "flops": sum(float(str(line["flops"])) for line in commits),
        "staleness_mean": float(np.mean(staleness)),
        "staleness_max": max(staleness),
        "faults": sum(line["kind"] == "fault" for line in lines),
        "model_sha256": end["model_sha256"],
        **({"metrics": own} if own else {}),
    }


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
