"""How runs stand, from the files alone: whoever runs them need not be asked."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from fedraa.rundir.history import History
from fedraa.rundir.layout import CONFIG, EVALS, EVENTS


@dataclass(frozen=True)
class Status:
    """`state` is running, ended (by what), or interrupted; step and time are those of the last line in the log.

    `accuracy` is the last value of `figure`, that its objective is judged by."""

    run: str
    state: str
    step: int
    t: float
    accuracy: float | None
    faults: int
    figure: str = "accuracy"


def status(directory: Path) -> Status:
    """ValueError for what is no run directory."""
    history = History(directory)
    step, t, faults, main = 0, 0.0, 0, history.figures.main
    with (directory / EVENTS).open("rb") as stream:
        for text in stream:
            try:
                line = json.loads(text)
            except ValueError:  # being written at this moment, or torn
                break
            step, t = line.get("step", step), line["t"]
            faults += line["kind"] == "fault"
    with (directory / EVALS).open(newline="") as table:
        values = [float(row[main]) for row in csv.DictReader(table) if row[main]]
    return Status(str(directory), history.state, step, t, values[-1] if values else None, faults, main)


def runs_below(directory: Path) -> list[Path]:
    """The run directories in a folder, by name."""
    return sorted(path.parent for path in directory.glob(f"*/{CONFIG}"))
