"""The state of runs, read from their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraa.rundir.failures import read_failure
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.history import History
from fedraa.rundir.run_stats import read_stats


@dataclass(frozen=True)
class Status:
    """The status of a run. Its `state` is "running", "interrupted", "ended by REASON" or "failed (REASON)".

    Attributes:
        run: The run directory.
        state: The state, with its reason.
        step: The number of server updates, or rounds, at the last line of the log.
        t: The time of the last line on the run's clock.
        value: The last value of the main metric; None before the first evaluation.
        faults: The number of faults of workers.
        quarantined: An entry for each quarantined client, with the reason and the time.
        metric: The name of the objective's main metric.
        note: The note in the summary of a finished run.
    """

    run: str
    state: str
    step: int
    t: float
    value: float | None
    faults: int
    quarantined: tuple[Mapping[str, Any], ...] = ()
    metric: str = "accuracy"
    note: str = ""


def read_status(directory: Path) -> Status:
    """Return the status of a run.

    Raises InputError if the directory is not a run directory, or is damaged.
    """
    history = History(directory)
    main = history.metric_spec.main
    stats = read_stats(directory, partial=True)
    evals = history.evals
    value = None
    if not evals.empty:
        value = float(evals[main].iloc[-1])
    state = history.state
    note = ""
    if state.startswith("ended"):
        note = str(history.summary.get("note", ""))
    if state == "failed":
        state = f"failed ({read_failure(directory)})"
    return Status(
        run=str(directory),
        state=state,
        step=stats.step,
        t=stats.t,
        value=value,
        faults=stats.faults,
        quarantined=tuple(stats.failures.quarantined),
        metric=main,
        note=note,
    )


def read_statuses(directory: Path) -> list[Status]:
    """Return the status of all runs in a folder. If a run cannot be read, its `state` has the error."""
    rows = []
    for path in runs_below(directory):
        try:
            rows.append(read_status(path))
        except (ValueError, OSError) as error:
            rows.append(Status(str(path), f"damaged ({error})", step=0, t=0.0, value=None, faults=0))
    return rows


def runs_below(directory: Path) -> list[Path]:
    """Return the run directories in a folder, sorted by name."""
    return sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
