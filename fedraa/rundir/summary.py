"""The totals of a run, for summary.json and for reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedraa.errors import InputError
from fedraa.privacy.accountant import PrivacyTerms
from fedraa.rundir.checked_files import with_nan
from fedraa.rundir.event_reader import read_events
from fedraa.rundir.history import History
from fedraa.rundir.run_stats import RunStats, read_stats

NO_STEP = "no step was finished"


def summarise_run(history: History) -> dict[str, object]:
    """Return the totals of a finished run. A metric that is not finite is None.

    Raises InputError if the log has no end.
    """
    stats = read_stats(history.directory)
    if stats.end is None:
        raise InputError("events", f"the log of {history.directory} has no end", hint="resume the run")
    return _make_totals(history, stats, stats.end)


def summarise_unfinished(history: History) -> dict[str, object]:
    """Return the totals of a run that has not ended.

    The entry `reason` is the state of the run, such as "running". The digest of the model is empty.

    Raises InputError if the run has no evaluation yet.
    """
    if history.evals.empty:
        raise InputError("run", f"{history.directory} has no evaluation yet", hint="wait for the first one")
    stats = read_stats(history.directory, partial=True)
    end = {"reason": history.state, "model_sha256": "", "step": stats.step, "t": stats.t, "wall": stats.wall}
    totals = with_nan(_make_totals(history, stats, end), history.metric_spec)
    return totals | {"time_to_target": None}


def _make_totals(history: History, stats: RunStats, end: Mapping[str, Any]) -> dict[str, object]:
    """Return the totals of a run. `end` has the fields of an `end` event. A metric that is not finite is None."""
    evals = history.evals
    metric_spec = history.metric_spec
    totals = {"method": history.config["experiment"]["method"], "reason": end["reason"]}
    if "by" in end:
        totals["by"] = end["by"]
    if end["step"] == 0:
        totals["note"] = NO_STEP
    totals |= {
        "steps": end["step"],
        "tasks": stats.committed,
        "time": end["t"],
        "wall": end["wall"],
        **{name: _finite_or_none(evals[name].iloc[-1]) for name in metric_spec.names},
        f"best_{metric_spec.main}": _finite_or_none(metric_spec.best(evals[metric_spec.main])),
        "loss": _finite_or_none(evals["loss"].iloc[-1]),
        "client_worst": _finite_or_none(evals["client_worst"].iloc[-1]),
        "bytes_down": stats.bytes_down,
        "bytes_up": stats.bytes_up,
        "flops": stats.flops,
        **_energy_entry(stats),
        "staleness_mean": stats.staleness_mean or 0.0,
        "staleness_max": stats.staleness_max,
        "faults": stats.faults,
        **stats.failures.summary_entries(),
        "model_sha256": end["model_sha256"],
    }
    if stats.lost:
        totals["lost"] = stats.lost
    if "privacy" in history.config["resolved"]:
        terms = PrivacyTerms(**history.config["resolved"]["privacy"])
        totals["privacy"] = terms.measure_loss(read_events(history.directory, partial=True))
    if metric_spec.own:
        totals["metrics"] = {name: _finite_or_none(evals[name].iloc[-1]) for name in metric_spec.own}
    return totals


def _energy_entry(stats: RunStats) -> dict[str, float]:
    """Return a dict with the entry `energy` of the summary; empty if the power of the devices is unknown."""
    if stats.energy is None:
        return {}
    return {"energy": stats.energy}


def _finite_or_none(value: float) -> float | None:
    if not np.isfinite(value):
        return None
    return float(value)
