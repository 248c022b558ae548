"""The event log: append-only JSON lines, and the table of evaluations, written as they come."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedraa.messages import Evaluation, State
from fedraa.objectives import Figures
from fedraa.rundir.atomic_files import written
from fedraa.rundir.clients_file import as_rows, columns_of, rows_of
from fedraa.rundir.file_names import CLIENTS
from fedraa.rundir.growing_file import DIGESTS, LOGS, GrowingFile
from fedraa.rundir.run_lock import Hold, this_process

TIMES = ("step", "t", "wall")
EVAL_COLUMNS = (*TIMES, *Figures().columns)  # of a classification
_as_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


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
        *,
        clients: bool = False,
    ) -> None:
        """`driver` is the process that Ctrl-C stops (default: this one); `on_line` gets every line that is written.

        With `clients` there is also a table of the results of each client.

        Raises ValueError if another process goes on writing this run.
        """
        self._on_line, self._directory = on_line, directory
        files = {name: file for name, file in LOGS.items() if clients or file != CLIENTS}
        self._files = {name: GrowingFile(directory / file) for name, file in files.items()}
        self._events, self._evals = self._files["events"], self._files["evals"]
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
        figures = figures or Figures()
        for file in self._files.values():
            file.restore(0)
        self._evals.append((",".join((*TIMES, *figures.columns)) + "\n").encode())
        if "clients" in self._files:
            self._files["clients"].append(as_rows([columns_of(figures)]))

    def state(self) -> State:
        """Where the log stands, and the digests of all that it has."""
        return {
            **{name: file.size for name, file in self._files.items()},
            DIGESTS: {name: file.sha256 for name, file in self._files.items()},
            "seq": self._seq,
            "wall": self.wall,
        }

    def restore(self, state: State) -> None:
        """Cut the log back to where it stood then: what came later, torn or whole, comes again."""
        for name, file in self._files.items():
            file.restore(state[name])
        self._seq = state["seq"]
        self._started = time.monotonic() - state["wall"]

    def record(self, kind: str, t: float, /, **fields: object) -> None:
        """One event, written whole; Unwritable, and the log ends with the one before, where the disk takes no more."""
        line = {"seq": self._seq, "kind": kind, "t": t, "wall": round(self.wall, 6), **fields}
        self._events.append((_as_json(line) + "\n").encode())
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

    def evaluated_clients(self, step: int, t: float, columns: Mapping[str, Any], order: Sequence[str]) -> None:
        """Append the rows of some clients at one evaluation to clients.csv."""
        self._files["clients"].append(rows_of(step, t, columns, order))

    def sync(self) -> None:
        """All lines so far, on the disk for good."""
        with written(self._directory):
            for file in self._files.values():
                os.fsync(file.stream.fileno())

    def close(self) -> None:
        self._hold.release()
        self._close()

    def _close(self) -> None:
        for file in self._files.values():
            file.stream.close()
