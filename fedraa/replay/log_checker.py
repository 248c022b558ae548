"""Check a whole log, line by line, against the rules of the run's method."""

from typing import Any

from fedraa.engine.loop_state import CALLBACK
from fedraa.objectives import Target
from fedraa.replay.decision_checker import AsyncChecker, Checker, RoundChecker
from fedraa.replay.evaluation_check import Evaluations
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules

# The summary of a check lists the number of lines of each kind, in this order.
KINDS = ("dispatch", "commit", "drop", "lost", "round", "eval", "fault", "checkpoint", "end")


class Audit:
    """A check of a log. It raises Inconsistent at the first line that contradicts the rules of the run's method."""

    def __init__(self, rules: Rules) -> None:
        self.lines = dict.fromkeys(KINDS, 0)
        self.end: Line | None = None
        self.evaluations = Evaluations(rules)
        self._rules = rules
        asynchronous = rules.method["schedule"]["kind"] in ("AsyncSchedule", "AsyncSampled")
        self._checker: Checker[Any] = AsyncChecker(rules) if asynchronous else RoundChecker(rules)
        self._ledger = self._checker.ledger
        self._clock = self._checker.clock
        self._saved = -1

    def check(self, line: Line) -> None:
        """Check the next line of the log."""
        if self.end is not None:
            raise line.wrong(f"no line may follow the end in line {self.end.number}")
        if self._ledger.bad_clients.stopped:
            raise line.wrong("no line may follow a failed client that stops the run")
        if line.kind not in self.lines:
            raise line.wrong(f"the kind of a line must be one of {', '.join(KINDS)}")
        self.lines[line.kind] += 1
        if line.kind == "eval":
            self.evaluations.evaluated(line, self._ledger.step)
            return
        self.evaluations.before(line)
        if self._checker.due not in (None, line.kind):
            raise line.wrong(f"by the rules this line must be a {self._checker.due}")
        step = self._ledger.step
        match line.kind:
            case "dispatch":
                self._check_not_over(line)
                self._checker.dispatch(line)
            case "commit":
                self._check_not_over(line)
                self._check_settled(line)
                self._checker.commit(line)
            case "drop":
                self._check_not_over(line)
                self._check_settled(line)
                self._checker.drop(line)
            case "lost":
                self._check_not_over(line)
                self._check_settled(line)
                self._checker.lost(line)
            case "round":
                if self._checker.due is None:
                    self._check_not_over(line)
                self._checker.round(line)
            case "fault":
                self._check_settled(line)
                self._clock.check_fault(line)
            case "checkpoint":
                self._check_checkpoint(line)
            case "end":
                self._check_end(line)
        if self._ledger.step > step:
            self.evaluations.after(self._ledger.step, self._clock.now)

    @property
    def _checkpoint_due(self) -> bool:
        """True if the next line must log a checkpoint. Only checkpoints by the option `checkpoint_every` are logged."""
        step = self._ledger.step
        every = self._rules.experiment.checkpoint_every
        return every is not None and step % every == 0 and step > self._saved and not self._clock.waiting

    def _check_checkpoint(self, line: Line) -> None:
        if not self._checkpoint_due:
            raise line.wrong("by the rules no checkpoint is due here")
        line.expect_value("t", self._clock.now)
        line.expect_value("step", self._ledger.step)
        self._saved = self._ledger.step

    def _check_settled(self, line: Line) -> None:
        """Raise an error if the line is too early: a client still waits for a task, or a checkpoint is missing."""
        if self._clock.waiting:
            raise line.wrong(f"client {self._clock.waiting[0]} waits, and must get a task before this line")
        if self._checkpoint_due:
            raise line.wrong(f"the checkpoint of step {self._ledger.step} must come before this line")

    def _check_not_over(self, line: Line) -> None:
        limits = self._rules.resolved.limits
        if limits.steps is not None and self._ledger.step >= limits.steps:
            raise line.wrong(f"the run must end after step {limits.steps}")
        if self.evaluations.reached is not None:
            raise line.wrong(f"the run must end when the {_goal_text(limits.goal)}")
        if limits.time is not None and not self._rules.wall and line.t > limits.time:
            raise line.field_error("t", f"the end at {limits.time!r}")

    def _check_end(self, line: Line) -> None:
        reason, t = self._find_reason(line)
        line.expect_value("reason", reason)
        line.expect_value("step", self._ledger.step)
        if self.evaluations.final is not None:
            line.expect_value("t", self.evaluations.final)
        line.expect_value("t", t)
        if not self.evaluations.is_complete(self._ledger.step):
            raise line.wrong(f"the evaluation of step {self._ledger.step} must come before this line")
        self.end = line

    def _find_reason(self, line: Line) -> tuple[str, float]:
        """Return the reason for which the run must end here, and the time of the end."""
        limits = self._rules.resolved.limits
        now = self._clock.now
        if self._rules.wall:
            now = line.at_least("t", now)
        # The log does not show if a callback really asked for the end, so only the time of the end is checked.
        if line["reason"] == CALLBACK:
            if not isinstance(line["by"], str):
                raise line.field_error("by", "the name of a callback")
            return CALLBACK, now
        time_limit = self._reached_time_limit(now)
        steps_done = limits.steps is not None and self._ledger.step >= limits.steps
        t = now
        # If the last step also reaches the limit of steps, the clock does not move to the time limit.
        if time_limit is not None and not (self._rules.wall or steps_done):
            t = time_limit
        if self.evaluations.reached is not None:
            return "accuracy" if limits.target is None else "target", t
        if steps_done:
            return "steps", t
        if time_limit is not None:
            return "time", t
        is_idle = not self._clock.waiting and not self._ledger.in_flight
        if is_idle and len(self._ledger.bad_clients.excluded) == self._ledger.clients:
            return "participations", t
        raise line.field_error("reason", f"no end yet, because the limits are {limits!r}")

    def _reached_time_limit(self, now: float) -> float | None:
        """Return the time limit if the run has reached it.

        On the virtual clock, a run has reached the limit if no client waits for a task, and if the next task and the
        round end after the limit.
        """
        limit = self._rules.resolved.limits.time
        if limit is None:
            return None
        if self._rules.wall and now < limit:
            return None
        if not self._rules.wall:
            if self._clock.waiting or not self._ledger.in_flight:
                return None
            # The run continues if a task ends or a round closes before the limit.
            if min(self._clock.first_due(), self._checker.closes_at) <= limit:
                return None
        return limit


def _goal_text(goal: Target | None) -> str:
    assert goal is not None
    return f"{goal.name} is {goal.value}"
