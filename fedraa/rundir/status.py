"""The state of runs, read only from their files."""

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
    """The state of a run: running, ended (by a reason), failed (with a reason), or interrupted.

    `step` and `t` are of the log's last line. `accuracy` is the last value of `figure`, the main metric of the
    objective. `quarantined` has an entry of `Failures.totals` for each quarantined client. `note` is the note of the
    summary of a finished run.
    """

    run: str
    state: str
    step: int
    t: float
    accuracy: float | None
    faults: int
    quarantined: tuple[Mapping[str, Any], ...] = ()
    figure: str = "accuracy"
    note: str = ""


def status(directory: Path) -> Status:
    """Return the status of a run. Raise InputError if the directory is not a run directory, or is damaged."""
    history = History(directory)
    main = history.figures.main
    stats = read_stats(directory, partial=True)
    evals = history.evals
    accuracy = None if evals.empty else float(evals[main].iloc[-1])
    state, note = history.state, ""
    if state.startswith("ended"):
        note = str(history.summary.get("note", ""))
    if state == "failed":
        state = f"failed ({read_failure(directory)})"
    return Status(
        str(directory), state, stats.step, stats.t, accuracy, stats.faults, tuple(stats.quarantined), main, note
    )


def statuses(directory: Path) -> list[Status]:
    """Return the status of all runs in a folder. The state of an unreadable run is its error."""
    found = []
    for path in runs_below(directory):
        try:
            found.append(status(path))
        except ValueError as error:
            found.append(Status(str(path), f"damaged ({error})", 0, 0.0, None, 0))
    return found


def runs_below(directory: Path) -> list[Path]:
    """Return the run directories in a folder, by name."""
    return sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
