"""The growing table of a run's evaluations."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.board.lines import GrowingLines
from fedraa.errors import InputError
from fedraa.objectives import Figures
from fedraa.rundir.event_log import TIMES

Floats = npt.NDArray[np.float64]


class Evaluations:
    """The columns of evals.csv; a metric that is not finite is NaN or infinite."""

    def __init__(self, path: Path, figures: Figures) -> None:
        self._lines, self.names = GrowingLines(path), (*TIMES, *figures.columns)
        self._begin()

    def _begin(self) -> None:
        self._columns: list[array[float]] = [array("d") for _ in self.names]
        self._wrong = ""

    def follow(self) -> bool:
        """Read new rows; return True if there were any. Raise InputError if the file is not such a table."""
        is_new = False
        while True:
            lines, anew = self._lines.read()
            if anew:
                self._begin()
            for number, line in enumerate(lines, self._lines.number - len(lines) + 1):
                self._wrong = self._wrong or self._take(number, line.split(","))
            is_new |= anew or bool(lines)
            if self._lines.more:
                continue
            if self._wrong:
                raise InputError("evals", f"{self._lines.path} is not a table of evaluations: {self._wrong}")
            return is_new

    def __len__(self) -> int:
        return len(self._columns[0])

    def column(self, name: str) -> Floats:
        """Return a copy of a column."""
        return np.array(self._columns[self.names.index(name)])

    def _take(self, number: int, cells: Sequence[str]) -> str:
        """Add a row and return a description of its error, or an empty text."""
        if number == 1:
            return "" if tuple(cells[: len(self.names)]) == self.names else f"its columns are {', '.join(cells)[:100]}"
        try:
            row = [float(cell) for cell in cells]
        except ValueError:
            row = []
        if len(row) < len(self.names):
            return f"line {number} is none"
        # The user may have added columns.
        for column, value in zip(self._columns, row, strict=False):
            column.append(value)
        return ""
