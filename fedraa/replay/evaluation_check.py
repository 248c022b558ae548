"""When the model is to be evaluated, and whether evals.csv says the same as the log."""

import csv
from collections import deque
from pathlib import Path

from fedraa.engine.loop import ASIDE
from fedraa.errors import Inconsistent
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules
from fedraa.rundir.event_log import TIMES
from fedraa.rundir.file_names import EVALS


class Evaluations:
    """The start, then every `eval_every` updates, then the end; evaluated aside while the run goes on.

    A line carries the time of its model and is written, at the latest, when there would be more than `aside` under
    way, as config.json has it: on the virtual clock just then, so that logs do not depend on who is fast; at once
    where a figure, or a callback, may end the run.
    """

    def __init__(self, rules: Rules) -> None:
        self.reached: float | None = None
        """When the accuracy, or another figure, came to its target."""
        self.final: float | None = None
        """The time of an evaluation made only because the run ended."""
        self.ending = False
        """Whether nothing but the end can follow."""
        self._columns = [*TIMES, *rules.resolved.figures.columns, *rules.resolved.metrics]
        self._every, self._goal = rules.resolved.eval_every, rules.resolved.limits.goal
        usual = ASIDE if self._goal is None else 0
        self._aside = usual if rules.resolved.aside is None else rules.resolved.aside
        self._virtual = not rules.wall
        self._pending = deque([(0, 0.0)])
        self._started = 0
        self._lines: list[Line] = []

    def after(self, step: int, t: float) -> None:
        """The server made its update number `step`."""
        if step % self._every == 0:
            self._pending.append((step, t))
            self._started = step

    def before(self, line: Line) -> None:
        """Checks that no evaluation should have come before this line, which is none itself."""
        if self.ending and line.kind != "end":
            raise line.wrong("the run goes on; the rules give its end after an evaluation made so early")
        if len(self._pending) > self._aside:
            raise line.wrong(f"the rules give the evaluation of step {self._pending[0][0]} before it")

    def evaluated(self, line: Line, step: int) -> None:
        """Checks an `eval` line that comes while the server has made `step` updates."""
        early = self._virtual and len(self._pending) <= self._aside
        if self._pending:
            due, t = self._pending.popleft()
            line.expect("step", due)
            line.expect("t", t)
        elif self._started == step:
            raise line.wrong(f"step {line['step']!r} is evaluated; the rules give no evaluation here")
        else:
            line.expect("step", step)
            self._started = step
            self.final = line.t
        self.ending = early or self.final is not None
        if (
            self._goal is not None
            and line[self._goal.name] is not None
            and self._goal.reached(line.number_of(self._goal.name))
        ):
            self.reached = line.t
        self._lines.append(line)

    def complete(self, step: int) -> bool:
        """Whether the model as of `step` was evaluated."""
        return self._started == step and not self._pending

    def compare(self, directory: Path, *, ended: bool) -> None:
        """Checks evals.csv, where all but the time of writing is as in the log.

        A run that was killed may have died between the two.
        """
        try:
            with (directory / EVALS).open(newline="", encoding="utf-8") as stream:
                header, *rows = [*csv.reader(stream)] or [[]]
        except (csv.Error, UnicodeDecodeError) as error:
            raise Inconsistent(EVALS, f"is no table: {error}") from None
        if header != self._columns:
            raise Inconsistent(f"{EVALS} line 1", f"is {header}; the rules give {self._columns}")
        for number, (row, line) in enumerate(zip(rows, self._lines, strict=False), 2):
            if len(row) != len(self._columns):
                raise Inconsistent(
                    f"{EVALS} line {number}", f"has {len(row)} columns; the rules give {len(self._columns)}"
                )
            for column, said in zip(self._columns, row, strict=True):
                if column != "wall" and said not in _written(line[column]):
                    raise Inconsistent(
                        f"{EVALS} line {number}",
                        f"{column} is {said}; line {line.number} of the log gives {line[column]!r}",
                    )
        if len(rows) != len(self._lines) and ended:
            raise Inconsistent(EVALS, f"has {len(rows)} evaluations; the log has {len(self._lines)}")


def _written(value: object) -> tuple[str, ...]:
    """How evals.csv may write what the log has; null there stands for what is not finite."""
    return ("inf", "-inf", "nan") if value is None else (repr(value),)
