"""A whole log against the rules, line by line."""

from fedraa.replay.books import AsyncBook, Book, RoundBook
from fedraa.replay.evaluations import Evaluations
from fedraa.replay.line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.tasks import Tasks


class Audit:
    """Feeds lines to the books in their order; raises Inconsistent at the first that does not follow."""

    def __init__(self, rules: Rules) -> None:
        self.lines = {"dispatch": 0, "commit": 0, "round": 0, "eval": 0, "fault": 0, "checkpoint": 0, "end": 0}
        self.end: Line | None = None
        self.evaluations = Evaluations(rules)
        self._rules = rules
        self._tasks = Tasks(rules)
        asynchronous = rules.method["schedule"]["kind"] == "Asynchronous"
        self._book: Book = AsyncBook(rules, self._tasks) if asynchronous else RoundBook(rules, self._tasks)

    def check(self, line: Line) -> None:
        if self.end is not None:
            raise line.wrong(f"the rules give nothing after the end in line {self.end.number}")
        if line.kind not in self.lines:
            raise line.wrong(f"the rules give one of {', '.join(self.lines)}")
        self.lines[line.kind] += 1
        if line.kind == "eval":
            self.evaluations.evaluated(line, self._book.step)
            return
        self.evaluations.before(line)
        if self._book.due not in (None, line.kind):
            raise line.wrong(f"the rules give a {self._book.due} here")
        match line.kind:
            case "dispatch":
                self._not_over(line)
                self._book.dispatch(line)
            case "commit":
                self._not_over(line)
                self._all_busy(line)
                self._book.commit(line)
            case "round":
                self._book.round(line)
            case "fault":
                self._all_busy(line)
                self._tasks.fault(line)
            case "checkpoint":
                self._tasks.advance(line)
            case "end":
                self._end(line)
        if line.kind == self._book.counts:
            self.evaluations.after(self._book.step, self._tasks.now)

    def _all_busy(self, line: Line) -> None:
        if self._tasks.waiting:
            raise line.wrong(f"the rules give client {self._tasks.waiting[0]}, which waits, a task first")

    def _not_over(self, line: Line) -> None:
        limits = self._rules.resolved.limits
        if limits.steps is not None and self._book.step >= limits.steps:
            raise line.wrong(f"the rules give the end after step {limits.steps}")
        if self.evaluations.hit and (line.kind == "commit" or self._book.step):
            raise line.wrong(f"the rules give the end once the accuracy is {limits.accuracy}")
        if limits.time is not None and not self._rules.wall and line.t > limits.time:
            raise line.wrong(f"t is {line.t!r}; the rules give the end at {limits.time!r}")

    def _end(self, line: Line) -> None:
        line.expect("step", self._book.step)
        if line["reason"] == "interrupt":
            self._tasks.advance(line)
        else:
            reason, t = self._why(line)
            line.expect("reason", reason)
            line.expect("t", t)
        if self.evaluations.final is not None:
            line.expect("t", self.evaluations.final)
        elif not self.evaluations.complete(self._book.step):
            raise line.wrong(f"the rules give the evaluation of step {self._book.step} before it")
        self.end = line

    def _why(self, line: Line) -> tuple[str, float]:
        """The limit that ended the run by the books, and when."""
        limits, tasks = self._rules.resolved.limits, self._tasks
        if self.evaluations.hit:
            return "accuracy", tasks.now
        if limits.steps is not None and self._book.step >= limits.steps:
            return "steps", tasks.now
        if limits.time is not None:
            self._all_busy(line)
            if self._rules.wall and line.t >= limits.time:
                return "time", line.t
            if not self._rules.wall and tasks.first_due().due > limits.time:
                return "time", limits.time
        raise line.wrong(f"reason is {line['reason']!r}; the rules give no end yet, with {limits!r}")
