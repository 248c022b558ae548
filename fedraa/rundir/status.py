"""How runs stand, from the files alone: whoever runs them need not be asked."""

import json
from dataclasses import dataclass
from pathlib import Path

from fedraa.rundir.history import History
from fedraa.rundir.layout import CONFIG, EVENTS
from fedraa.rundir.read import is_event
from fedraa.server.bad_clients import QUARANTINED


@dataclass(frozen=True)
class Status:
    """`state` is running, ended (by what), or interrupted; step and time are those of the last line in the log.

    `accuracy` is the last value of `figure`, that its objective is judged by; `quarantined` are the clients that are
    left out.
    """

    run: str
    state: str
    step: int
    t: float
    accuracy: float | None
    faults: int
    quarantined: tuple[int, ...] = ()
    figure: str = "accuracy"


def status(directory: Path) -> Status:
    """ValueError for what is no run directory."""
    history = History(directory)
    step, t, faults, main = 0, 0.0, 0, history.figures.main
    quarantined: list[int] = []
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
            if line["kind"] == "drop" and line["action"] == QUARANTINED:
                quarantined.append(line["client"])
    evals = history.evals
    accuracy = None if evals.empty else float(evals[main].iloc[-1])
    return Status(str(directory), history.state, step, t, accuracy, faults, tuple(quarantined), main)


def statuses(directory: Path) -> list[Status]:
    """Of all runs in a folder; of one that cannot be read, what is wrong with it in place of its state."""
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
