"""The table of a run's evaluations (evals.csv), to which the run adds rows."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedraa.board.lines import GrowingLines
from fedraa.errors import InputError
from fedraa.messages import Floats
from fedraa.objectives import MetricSpec
from fedraa.rundir.event_log import TIMES


class Evaluations:
    """The columns of evals.csv, with the rows that were read so far. A metric can be NaN or infinite."""

    def __init__(self, path: Path, metric_spec: MetricSpec) -> None:
        self._lines = GrowingLines(path)
        self.names = (*TIMES, *metric_spec.columns)
        self._reset_columns()

    def _reset_columns(self) -> None:
        self._columns: list[array[float]] = [array("d") for _ in self.names]
        # The first error in the file; empty if there is none.
        self._error = ""

    def follow(self) -> bool:
        """Read new rows and return True if the table changed. Raise InputError if a line is invalid."""
        has_changed = False
        while True:
            lines, is_restarted = self._lines.read()
            if is_restarted:
                self._reset_columns()
            for number, line in enumerate(lines, self._lines.number - len(lines) + 1):
                if not self._error:
                    self._error = self._add_row(number, line.split(","))
            has_changed |= is_restarted or bool(lines)
            if not self._lines.more:
                break
        if self._error:
            raise InputError("evals", f"{self._lines.path} is not a table of evaluations: {self._error}")
        return has_changed

    def __len__(self) -> int:
        return len(self._columns[0])

    def column(self, name: str) -> Floats:
        """Return a copy of the column with this name."""
        return np.array(self._columns[self.names.index(name)])

    def _add_row(self, number: int, cells: Sequence[str]) -> str:
        """Add line `number` of the file to the table, or return a description of an invalid line."""
        if number == 1 and tuple(cells[: len(self.names)]) != self.names:
            return f"its columns are {', '.join(cells)[:100]}"
        if number == 1:
            return ""
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            return f"line {number} has a cell that is not a number"
        if len(row) < len(self.names):
            return f"line {number} has {len(row)} cells"
        # If the user added columns on the right, they are ignored.
        for column, value in zip(self._columns, row, strict=False):
            column.append(value)
        return ""
