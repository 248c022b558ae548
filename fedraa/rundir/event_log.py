"""The event log: append-only JSON lines, and the table of evaluations, written as they come."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedraa.messages import Evaluation, State
from fedraa.objectives import Figures
from fedraa.rundir.chain import DIGESTS, GrowingFile
from fedraa.rundir.files import written
from fedraa.rundir.layout import EVALS, EVENTS
from fedraa.rundir.lock import Hold, this_process

TIMES = ("step", "t", "wall")
EVAL_COLUMNS = (*TIMES, *Figures().columns)  # of a classification


class EventLog:
    """Writes a run's events and evaluations, each line written through as it comes; the only writer of a run.

    Every event has `seq`, `kind`, `t` (seconds on the run's clock) and `wall` (real seconds since the start, less
    those between an interruption and the resumption).
    """

    def __init__(
        self,
        directory: Path,
        driver: str | None = None,
        on_line: Callable[[Mapping[str, object]], None] | None = None,
    ) -> None:
        """`driver` is the process that Ctrl-C stops (default: this one); `on_line` gets every line that is written.

        Raises ValueError if another process goes on writing this run.
        """
        self._on_line, self._directory = on_line, directory
        self._events, self._evals = GrowingFile(directory / EVENTS), GrowingFile(directory / EVALS)
        try:
            self._hold = Hold(directory, self._events.stream, driver or this_process())
        except BaseException:
            self._close()
            raise
        self._started = time.monotonic()
        self._seq = 0

    @property
    def wall(self) -> float:
        return time.monotonic() - self._started

    def begin(self, figures: Figures | None = None) -> None:
        """Start an empty log; `figures` are those of an evaluation (default: of a classification)."""
        self._events.restore(0)
        self._evals.restore(0)
        self._evals.append((",".join((*TIMES, *(figures or Figures()).columns)) + "\n").encode())

    def state(self) -> State:
        """Where the log stands, and the digests of all that it has."""
        return {
            "events": self._events.size,
            "evals": self._evals.size,
            DIGESTS: {"events": self._events.sha256, "evals": self._evals.sha256},
            "seq": self._seq,
            "wall": self.wall,
        }

    def restore(self, state: State) -> None:
        """Cut the log back to where it stood then: what came later, torn or whole, comes again."""
        self._events.restore(state["events"])
        self._evals.restore(state["evals"])
        self._seq = state["seq"]
        self._started = time.monotonic() - state["wall"]

    def record(self, kind: str, t: float, /, **fields: object) -> None:
        """One event, written whole; Unwritable, and the log ends with the one before, where the disk takes no more."""
        line = {"seq": self._seq, "kind": kind, "t": t, "wall": round(self.wall, 6), **fields}
        self._events.append((json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode())
        self._seq += 1
        if self._on_line is not None:
            self._on_line(line)

    def evaluated(self, step: int, t: float, result: Evaluation) -> None:
        """An `eval` event and its row in evals.csv.

        A figure that is not finite is null in the one, inf or nan in the other.
        """
        figures = result.figures
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        self.record("eval", t, step=step, **finite)
        row = [step, t, round(self.wall, 6), *figures.values()]
        self._evals.append((",".join(map(repr, row)) + "\n").encode())

    def sync(self) -> None:
        """All lines so far, on the disk for good."""
        with written(self._directory):
            os.fsync(self._events.stream.fileno())
            os.fsync(self._evals.stream.fileno())

    def close(self) -> None:
        self._hold.release()
        self._close()

    def _close(self) -> None:
        self._events.stream.close()
        self._evals.stream.close()
