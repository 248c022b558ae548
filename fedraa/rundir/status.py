"""The state of runs, read from their files alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraa.rundir.checked_files import is_event
from fedraa.rundir.failures import Failures, read_failure
from fedraa.rundir.file_names import CONFIG, EVENTS
from fedraa.rundir.history import History


@dataclass(frozen=True)
class Status:
    """`state` is running, ended (by what), failed (why), or interrupted; step and time are of the log's last line.

    `accuracy` is the last value of `figure`, that its objective is judged by. `quarantined` has an entry of
    `Failures.totals` for each quarantined client. `note` is the note of the summary of a run that ended.
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
    """Return the status of a run; raise ValueError if the directory is no run directory."""
    history = History(directory)
    step, t, faults, main = 0, 0.0, 0, history.figures.main
    failures = Failures()
    with (directory / EVENTS).open("rb") as stream:
        for text in stream:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):  # being written at this moment, or torn
                break
            if not is_event(line) or not isinstance(line.get("step", step), int):
                break
            step, t = line.get("step", step), line["t"]
            faults += line["kind"] == "fault"
            if line["kind"] == "drop":
                failures.add(line)
    evals = history.evals
    accuracy = None if evals.empty else float(evals[main].iloc[-1])
    state, note = history.state, ""
    if state.startswith("ended"):
        note = str(history.summary.get("note", ""))
    if state == "failed":
        state = f"failed ({read_failure(directory)})"
    quarantined = tuple(failures.totals()["quarantined"])
    return Status(str(directory), state, step, t, accuracy, faults, quarantined, main, note)


def statuses(directory: Path) -> list[Status]:
    """Return the status of all runs in a folder; the state of an unreadable run is the fault found in it."""
    found = []
    for path in runs_below(directory):
        try:
            found.append(status(path))
        except ValueError as error:
            found.append(Status(str(path), f"damaged ({error})", 0, 0.0, None, 0))
    return found


def runs_below(directory: Path) -> list[Path]:
    """The run directories in a folder, by name."""
    return sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
