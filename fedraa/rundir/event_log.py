"""The event log, to which a run appends JSON lines, and the table of evaluations."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedraa.messages import Evaluation, State
from fedraa.objectives import MetricSpec
from fedraa.rundir.atomic_files import raise_unwritable
from fedraa.rundir.clients_file import clients_csv_columns, format_evaluation, format_rows
from fedraa.rundir.file_names import CLIENTS
from fedraa.rundir.growing_file import DIGESTS, LOGS, GrowingFile
from fedraa.rundir.run_lock import WriteLock, this_process

TIMES = ("step", "t", "wall")
_as_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class EventLog:
    """The object that writes a run's events and evaluations. It writes every line immediately.

    Every event has `seq` (its number), `kind`, `t` (the time on the run's clock) and `wall` (real seconds since the
    start). Interruptions of the run do not count in `wall`.
    """

    def __init__(
        self,
        directory: Path,
        driver: str | None = None,
        on_line: Callable[[Mapping[str, object]], None] | None = None,
        *,
        clients: bool = False,
    ) -> None:
        """Open the log.

        Args:
            directory: The run directory.
            driver: The process that Ctrl-C stops. None means this process.
            on_line: Receives every written line.
            clients: True to also write a table of the results of each client.

        Raises:
            ValueError: Another process still writes this run.
        """
        self._on_line = on_line
        self._directory = directory
        files = {name: file for name, file in LOGS.items() if clients or file != CLIENTS}
        self._files = {name: GrowingFile(directory / file) for name, file in files.items()}
        self._events = self._files["events"]
        self._evals = self._files["evals"]
        try:
            self._write_lock = WriteLock(directory, self._events.stream, driver or this_process())
        except BaseException:
            self._close_files()
            raise
        self._started = time.monotonic()
        self._seq = 0

    @property
    def wall(self) -> float:
        """Real seconds since the start. Interruptions of the run do not count."""
        return time.monotonic() - self._started

    def begin(self, metric_spec: MetricSpec | None = None) -> None:
        """Start an empty log for evaluations with these metrics, by default those of classification."""
        metric_spec = metric_spec or MetricSpec()
        for file in self._files.values():
            file.restore(0)
        self._evals.append((",".join((*TIMES, *metric_spec.columns)) + "\n").encode())
        if "clients" in self._files:
            self._files["clients"].append(format_rows([clients_csv_columns(metric_spec)]))

    def state(self) -> State:
        """Return the sizes of the files and the digests of their content."""
        return {
            **{name: file.size for name, file in self._files.items()},
            DIGESTS: {name: file.sha256 for name, file in self._files.items()},
            "seq": self._seq,
            "wall": self.wall,
        }

    def restore(self, state: State) -> None:
        """Remove the lines that were written after a checkpoint with this state."""
        for name, file in self._files.items():
            file.restore(state[name])
        self._seq = state["seq"]
        self._started = time.monotonic() - state["wall"]

    def record(self, kind: str, t: float, /, **fields: object) -> None:
        """Write an event.

        Raises Unwritable if the disk is full. The log then ends with the previous event.
        """
        line = {"seq": self._seq, "kind": kind, "t": t, "wall": round(self.wall, 6), **fields}
        self._events.append((_as_json(line) + "\n").encode())
        self._seq += 1
        if self._on_line is not None:
            self._on_line(line)

    def evaluated(self, step: int, t: float, result: Evaluation) -> None:
        """Write an `eval` event, and its row in evals.csv.

        A metric that is not finite is null in the event, and inf or nan in the row.
        """
        metrics = result.metrics
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.record("eval", t, step=step, **finite)
        row = [step, t, round(self.wall, 6), *metrics.values()]
        self._evals.append((",".join(map(repr, row)) + "\n").encode())

    def evaluated_clients(self, step: int, t: float, columns: Mapping[str, Any], order: Sequence[str]) -> None:
        """Append the results of clients in one evaluation to clients.csv.

        Args:
            step: The number of server updates.
            t: The time on the run's clock.
            columns: The values by column, without step and time.
            order: The columns of the file.
        """
        self._files["clients"].append(format_evaluation(step, t, columns, order))

    def sync(self) -> None:
        """Flush all lines to the disk."""
        with raise_unwritable(self._directory):
            for file in self._files.values():
                os.fsync(file.stream.fileno())

    def close(self) -> None:
        self._write_lock.release()
        self._close_files()

    def _close_files(self) -> None:
        for file in self._files.values():
            file.stream.close()
