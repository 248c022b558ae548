"""Check the evaluations of a run: their times, and that evals.csv agrees with the log."""

import csv
import io
from collections import deque
from itertools import zip_longest
from pathlib import Path

from fedraa.errors import Inconsistent
from fedraa.numbers import format_count
from fedraa.reading.regular_files import read_regular_file
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules
from fedraa.rundir.clients_file import drop_incomplete_line
from fedraa.rundir.event_log import TIMES
from fedraa.rundir.file_names import EVALS, EVENTS


class Evaluations:
    """The evaluations of a run: at the start, after every `eval_every` updates, and at the end.

    Evaluations run in parallel with training, and at most `max_pending_evals` are in progress. Therefore an `eval` line
    can follow lines with later times in the log. On the virtual clock, the line is written when a further evaluation
    would exceed the maximum. On the wall clock, the line may be written earlier.

    Attributes:
        reached: The time at which a metric reached its target.
        final: The time of an evaluation that was made only because the run ended.
        ending: True if the next line must be the `end` line.
    """

    def __init__(self, rules: Rules) -> None:
        self.reached: float | None = None
        self.final: float | None = None
        self.ending = False
        self._columns = [*TIMES, *rules.resolved.metric_spec.columns, *rules.resolved.metrics]
        self._every = rules.resolved.eval_every
        self._goal = rules.resolved.limits.goal
        self._max_pending_evals = rules.resolved.max_pending_evals
        self._virtual = not rules.wall
        self._pending = deque([(0, 0.0)])
        self._started = 0
        self._lines: list[Line] = []

    def after(self, step: int, t: float) -> None:
        """Record that server update number `step` was applied at time t."""
        if step % self._every == 0:
            self._pending.append((step, t))
            self._started = step

    def before(self, line: Line) -> None:
        """Check that no `eval` line is missing before `line`. Call this for each line that is not an `eval` line."""
        if self.ending and line.kind != "end":
            raise line.wrong("the run continues after an evaluation that is possible only at the end of a run")
        if len(self._pending) > self._max_pending_evals:
            raise line.wrong(f"the evaluation of step {self._pending[0][0]} must come before this line")

    def evaluated(self, line: Line, step: int) -> None:
        """Check an `eval` line. `step` is the number of server updates in the log before this line."""
        early = self._virtual and len(self._pending) <= self._max_pending_evals
        if self._pending:
            due, t = self._pending.popleft()
            line.expect_value("step", due)
            line.expect_value("t", t)
        elif self._started == step:
            raise line.wrong(f"step {line['step']!r} is evaluated, but by the rules no evaluation is due here")
        else:
            line.expect_value("step", step)
            self._started = step
            self.final = line.t
        self.ending = early or self.final is not None
        # The log has null for a metric that is not finite.
        if self._goal is not None and line[self._goal.name] is not None:
            value = line.number_of(self._goal.name)
            if self._goal.reached(value):
                self.reached = line.t
        self._lines.append(line)

    def is_complete(self, step: int) -> bool:
        """Return True if the model after `step` updates was evaluated and no evaluation is pending."""
        return self._started == step and not self._pending

    def compare(self, directory: Path, *, ended: bool) -> None:
        """Check that evals.csv agrees with the log. The real times of the rows are not compared.

        The last row may be missing or incomplete if the run has not ended, because a row is written after its event.
        """
        try:
            text = read_regular_file(directory / EVALS).decode()
            if not ended:
                text = drop_incomplete_line(text)
            header, *rows = [*csv.reader(io.StringIO(text))] or [[]]
        except (csv.Error, UnicodeDecodeError) as error:
            raise Inconsistent(EVALS, f"the file is not a table: {error}") from None
        for number, (name, expected) in enumerate(zip_longest(header, self._columns), 1):
            if name != expected:
                raise Inconsistent(f"{EVALS} line 1 column {number}", got=name, expected=repr(expected))
        for number, (row, line) in enumerate(zip(rows, self._lines, strict=False), 2):
            place = f"{EVALS} line {number}"
            if len(row) != len(self._columns):
                problem = f"it has {format_count(len(row), 'column')}"
                raise Inconsistent(place, problem, expected=str(len(self._columns)))
            for column, text in zip(self._columns, row, strict=True):
                if column != "wall" and text not in _csv_texts(line[column]):
                    expected = f"{line[column]!r}, as in line {line.number} of {EVENTS}"
                    raise Inconsistent(f"{place} {column}", got=text, expected=expected)
        if len(rows) != len(self._lines) and ended:
            expected = f"{len(self._lines)}, as in {EVENTS}"
            raise Inconsistent(EVALS, f"it has {format_count(len(rows), 'evaluation')}", expected=expected)


def _csv_texts(value: object) -> tuple[str, ...]:
    """Return the texts that evals.csv may have for a value of the log.

    In the log, null stands for a value that is not finite.
    """
    if value is None:
        return ("inf", "-inf", "nan")
    return (repr(value),)
