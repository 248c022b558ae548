"""The event log: append-only JSON lines, and the tables read from it."""

import json
import math
import os
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedraa.config.experiment import Experiment
from fedraa.messages import Evaluation, State
from fedraa.rundir.lock import Hold, this_process

if TYPE_CHECKING:
    import pandas as pd

EVENTS, EVALS, CONFIG, SUMMARY, MODEL = "events.jsonl", "evals.csv", "config.json", "summary.json", "model.pt"
CHECKPOINTS = "checkpoints"
CONFIG_PARTS = ("experiment", "method", "resolved", "versions")
EVAL_COLUMNS = ("step", "t", "wall", "accuracy", "loss", "client_mean", "client_std", "client_worst")


class EventLog:
    """Writes a run's events and evaluations, each line written through as it comes; the only writer of a run.

    Every event has `seq`, `kind`, `t` (seconds on the run's clock) and `wall` (real seconds since the start, less
    those between an interruption and the resumption).
    """

    def __init__(self, directory: Path, driver: str | None = None, on_event: Callable[..., None] | None = None) -> None:
        """`driver` is the process that Ctrl-C stops (default: this one); `on_event` is told all that is recorded.

        Raises ValueError if another process goes on writing this run.
        """
        self._on_event = on_event
        self._events = (directory / EVENTS).open("ab", buffering=0)
        self._evals = (directory / EVALS).open("ab", buffering=0)
        try:
            self._hold = Hold(directory, self._events, driver or this_process())
        except ValueError:
            self._close()
            raise
        self._started = time.monotonic()
        self._seq = 0

    @property
    def wall(self) -> float:
        return time.monotonic() - self._started

    def begin(self) -> None:
        """Start an empty log."""
        self._events.truncate(0)
        self._evals.truncate(0)
        self._evals.write((",".join(EVAL_COLUMNS) + "\n").encode())

    def state(self) -> State:
        """Where the log stands."""
        return {"events": _size(self._events), "evals": _size(self._evals), "seq": self._seq, "wall": self.wall}

    def holds(self, state: State) -> bool:
        """Whether the log still has all that it had then."""
        return bool(_size(self._events) >= state["events"] and _size(self._evals) >= state["evals"])

    def restore(self, state: State) -> None:
        """Cut the log back to where it stood then: what came later, torn or whole, comes again."""
        self._events.truncate(state["events"])
        self._evals.truncate(state["evals"])
        self._seq = state["seq"]
        self._started = time.monotonic() - state["wall"]

    def record(self, kind: str, t: float, /, **fields: object) -> None:
        line = {"seq": self._seq, "kind": kind, "t": t, "wall": round(self.wall, 6), **fields}
        self._events.write((json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode())
        self._seq += 1
        if self._on_event is not None:
            self._on_event(kind, t, **fields)

    def evaluated(self, step: int, t: float, result: Evaluation) -> None:
        """An `eval` event and its row in evals.csv; a loss that is not finite is null in the one, inf in the other."""
        figures = {
            "accuracy": result.accuracy,
            "loss": result.loss,
            "client_mean": result.client_mean,
            "client_std": result.client_std,
            "client_worst": result.client_worst,
        }
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        self.record("eval", t, step=step, **finite)
        row = [step, t, round(self.wall, 6), *figures.values()]
        self._evals.write((",".join(map(repr, row)) + "\n").encode())

    def sync(self) -> None:
        """All lines so far, on the disk for good."""
        os.fsync(self._events.fileno())
        os.fsync(self._evals.fileno())

    def close(self) -> None:
        self._hold.release()
        self._close()

    def _close(self) -> None:
        self._events.close()
        self._evals.close()


def _size(stream: FileIO) -> int:
    return os.fstat(stream.fileno()).st_size


class History:
    """A finished (or interrupted) run, read from its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in (CONFIG, EVENTS, EVALS):
            if not (directory / name).is_file():
                raise ValueError(f"run: {directory} is not a run directory; it has no {name}")

    @property
    def config(self) -> dict[str, Any]:
        """The whole resolved configuration; ValueError if the file holds none."""
        path = self.directory / CONFIG
        try:
            config = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"run: {path} is not JSON: {error}") from None
        if not isinstance(config, dict) or not all(isinstance(config.get(key), dict) for key in CONFIG_PARTS):
            raise ValueError(f"run: {path} is not a run's configuration; it lacks one of {', '.join(CONFIG_PARTS)}")
        return config

    @property
    def experiment(self) -> Experiment:
        return Experiment(**self.config["experiment"])

    @property
    def summary(self) -> dict[str, object]:
        path = self.directory / SUMMARY
        if not path.is_file():
            raise ValueError(f"run: {self.directory} has no {SUMMARY}; the run has not ended")
        return dict(json.loads(path.read_text()))

    @property
    def events(self) -> "pd.DataFrame":
        """One row per event; columns of other kinds are NaN."""
        import pandas as pd  # here and below: it is slow to import, and workers do without

        return pd.DataFrame(self.lines())

    @property
    def evals(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.read_csv(self.directory / EVALS)

    def lines(self) -> list[dict[str, object]]:
        """The events as they stand in the log; ValueError names the first line that is no event."""
        lines: list[dict[str, object]] = []
        with (self.directory / EVENTS).open(encoding="utf-8") as stream:
            for number, text in enumerate(stream, 1):
                try:
                    line = json.loads(text)
                except ValueError:
                    line = None
                if not isinstance(line, dict) or not {"seq", "kind", "t", "wall"} <= line.keys():
                    raise ValueError(f"events: line {number} of {self.directory / EVENTS} is not an event")
                lines.append(line)
        return lines
