"""Check a whole log against the rules, line by line."""

from typing import Any

from fedraa.engine.loop_state import CALLBACK
from fedraa.objectives import Target
from fedraa.replay.decision_checker import AsyncChecker, Checker, RoundChecker
from fedraa.replay.evaluation_check import Evaluations
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules


class Audit:
    """A check of lines in their order. It raises Inconsistent at the first line that does not follow."""

    def __init__(self, rules: Rules) -> None:
        self.lines = {"dispatch": 0, "commit": 0, "drop": 0, "round": 0, "eval": 0, "fault": 0, "checkpoint": 0}
        self.lines["end"] = 0
        self.end: Line | None = None
        self.evaluations = Evaluations(rules)
        self._rules = rules
        asynchronous = rules.method["schedule"]["kind"] in ("AsyncSchedule", "AsyncSampled")
        self._checker: Checker[Any] = AsyncChecker(rules) if asynchronous else RoundChecker(rules)
        self._ledger = self._checker.ledger
        self._clock = self._checker.clock
        self._saved = -1

    def check(self, line: Line) -> None:
        if self.end is not None:
            raise line.wrong(f"the rules give nothing after the end in line {self.end.number}")
        if self._ledger.bad_clients.stop and self._ledger.bad_clients.left_out:
            raise line.wrong("the rules give nothing after a bad client that stops the run")
        if line.kind not in self.lines:
            raise line.wrong(f"the rules give one of {', '.join(self.lines)}")
        self.lines[line.kind] += 1
        if line.kind == "eval":
            self.evaluations.evaluated(line, self._ledger.step)
            return
        self.evaluations.before(line)
        if self._checker.due not in (None, line.kind):
            raise line.wrong(f"the rules give a {self._checker.due} here")
        step = self._ledger.step
        match line.kind:
            case "dispatch":
                self._not_over(line)
                self._checker.dispatch(line)
            case "commit":
                self._not_over(line)
                self._settled(line)
                self._checker.commit(line)
            case "drop":
                self._not_over(line)
                self._settled(line)
                self._checker.drop(line)
            case "round":
                self._checker.round(line)
            case "fault":
                self._settled(line)
                self._clock.fault(line)
            case "checkpoint":
                self._checkpoint(line)
            case "end":
                self._end(line)
        if self._ledger.step > step:
            self.evaluations.after(self._ledger.step, self._clock.now)

    @property
    def _checkpoint_due(self) -> bool:
        """True if a checkpoint must be logged here. Checkpoints by real time are not in the log."""
        step, every = self._ledger.step, self._rules.experiment.checkpoint_every
        return every is not None and step % every == 0 and step > self._saved and not self._clock.waiting

    def _checkpoint(self, line: Line) -> None:
        if not self._checkpoint_due:
            raise line.wrong("the rules give no checkpoint here")
        line.expect("t", self._clock.now)
        line.expect("step", self._ledger.step)
        self._saved = self._ledger.step

    def _settled(self, line: Line) -> None:
        """Check that no client waits and no checkpoint is due before the next update."""
        if self._clock.waiting:
            raise line.wrong(f"the rules give client {self._clock.waiting[0]}, which waits, a task first")
        if self._checkpoint_due:
            raise line.wrong(f"the rules give the checkpoint of step {self._ledger.step} before it")

    def _not_over(self, line: Line) -> None:
        limits = self._rules.resolved.limits
        if limits.steps is not None and self._ledger.step >= limits.steps:
            raise line.wrong(f"the rules give the end after step {limits.steps}")
        if self.evaluations.reached is not None:
            raise line.wrong(f"the rules give the end once the {_words(limits.goal)}")
        if limits.time is not None and not self._rules.wall and line.t > limits.time:
            raise line.mismatch("t", f"the end at {limits.time!r}")

    def _end(self, line: Line) -> None:
        reason, t = self._why(line)
        line.expect("reason", reason)
        line.expect("step", self._ledger.step)
        line.expect("t", t if self.evaluations.final is None else self.evaluations.final)
        line.expect("t", t)
        if not self.evaluations.complete(self._ledger.step):
            raise line.wrong(f"the rules give the evaluation of step {self._ledger.step} before it")
        self.end = line

    def _why(self, line: Line) -> tuple[str, float]:
        """Return the reason for the end and its time by the rules; on the wall clock the time may be later."""
        limits, clock = self._rules.resolved.limits, self._clock
        if self._rules.wall:
            t = line.at_least("t", clock.now)
            late = limits.time is not None and t >= limits.time
        else:
            late = limits.time is not None and not clock.waiting and clock.first_due() > limits.time
            t = limits.time if late and limits.time is not None else clock.now
        # The request of a callback is not checked, but its time is.
        if line["reason"] == CALLBACK:
            if not isinstance(line["by"], str):
                raise line.mismatch("by", "the name of a callback")
            return CALLBACK, t if self._rules.wall else clock.now
        if self.evaluations.reached is not None:
            return "accuracy" if limits.target is None else "target", t
        if limits.steps is not None and self._ledger.step >= limits.steps:
            return "steps", t
        if late:
            return "time", t
        raise line.mismatch("reason", f"no end yet, for {limits!r}")


def _words(goal: Target | None) -> str:
    assert goal is not None
    return f"{goal.name} is {goal.value}"
