"""Check the decisions and the weights in the log of a run. A ledger computes each decision a second time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import inf
from typing import Generic, TypeVar

from fedraa.devices.costs import training_time
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.dispatch import Committed, Dispatch, Dropped
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.replay.coverage_check import Coverage
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.task_clock import LoggedTask, TaskClock
from fedraa.server.async_rule import ApplyResult, AsyncRule, model_without_values, update_without_values
from fedraa.server.partial_work import RoundEnd

Ledger = TypeVar("Ledger", bound=AsyncLedger | RoundLedger)


class Checker(ABC, Generic[Ledger]):
    """A checker of the decisions and weights of one kind of server.

    Args:
        rules: The rules of the run.
        ledger: The ledger that computes the decisions a second time.
        waiting: The clients that wait for a task at the start.

    Attributes:
        clock: The times of the tasks, and the clients that wait.
        due: The kind of the next line in the log; None if several kinds are possible.
    """

    def __init__(self, rules: Rules, ledger: Ledger, waiting: Iterable[int]) -> None:
        self.ledger = ledger
        self.clock = TaskClock(rules, ledger, waiting)
        self.due: str | None = None
        self._rules = rules

    def dispatch(self, line: Line) -> None:
        """Check the client and the fragment of a new task, and its costs if they can be computed."""
        decision = self._assign_task(line, self.clock.next_client(line), self._logged_fragment(line))
        costs = None
        if self._rules.costs_known:
            widths = self._rules.resolved.fragments[self.ledger.index(decision.fragment)]
            costs = self._rules.task_costs(widths, decision, self.clock.now, self.end)
        self.clock.depart(line, decision, costs)

    @abstractmethod
    def commit(self, line: Line) -> None:
        """Check an applied update."""

    def drop(self, line: Line) -> Dropped:
        """Check the decision about a failed task."""
        task = self.clock.end(line)
        dropped = self._drop_task(task.decision.task)
        line.expect_value("action", dropped.action)
        self._queue_clients(dropped)
        return dropped

    @property
    def end(self) -> RoundEnd | None:
        """The deadline of the current round; None if rounds have no deadline."""
        return None

    @property
    def closes_at(self) -> float:
        """The time of the deadline; infinite if rounds have no deadline."""
        return inf if self.end is None else self.end.closes_at

    @abstractmethod
    def lost(self, line: Line) -> None:
        """Check the line of a task that had not ended when its round closed."""

    @abstractmethod
    def round(self, line: Line) -> None:
        """Check the end of a round."""

    @abstractmethod
    def _drop_task(self, task: int) -> Dropped:
        """Return the ledger's decision about a failed task: retry, quarantine the client, or stop the run."""

    @abstractmethod
    def _assign_task(self, line: Line, client: int, fragment: int | None) -> Dispatch:
        """Return the ledger's decision for the client. The ledger chooses the fragment if `fragment` is None."""

    def _logged_fragment(self, line: Line) -> int | None:
        """Return the fragment of a task if the ledger cannot choose it; None if the ledger chooses it.

        The fragment is the one in the log line if a custom scheduler chose it, if its costs are unknown, or if it is a
        sampled submodel. It is 0 if the method sends the whole model.
        """
        if not self._rules.scheduled and self._rules.whole:
            return 0
        if not self._rules.scheduled:
            return int(line.at_least("fragment", 0))
        if self._rules.is_custom("schedule", "scheduler") or not self._rules.table_known:
            return int(line.between("fragment", 0, len(self._rules.resolved.fragments) - 1))
        return None

    def _check_update(self, line: Line, done: Committed, weight: float | None) -> None:
        """Compare an applied update with the ledger's result. Check the weight unless `weight` is None."""
        line.expect_value("version", done.version)
        line.expect_value("staleness", done.staleness.fragment)
        line.expect_value("staleness_total", done.staleness.total)
        line.number_of("weight")
        if weight is not None:
            line.expect_value("weight", weight)
        self._queue_clients(done)

    def _queue_clients(self, result: Committed | Dropped) -> None:
        self.clock.waiting.extend(result.next_clients)
        self.due = None
        if result.round_complete:
            self.due = "lost" if self.ledger.in_flight else "round"


class AsyncChecker(Checker[AsyncLedger]):
    """A checker for asynchronous servers. It applies updates without their parameters, which are not in the log.

    Some log entries cannot be computed again, so the checker accepts them: choices of a custom scheduler, weights that
    depend on parameters, and two decisions of a custom rule: to make a new version, and to let a client keep its task.
    """

    def __init__(self, rules: Rules) -> None:
        ledger = rules.async_ledger()
        super().__init__(rules, ledger, ledger.first_clients())
        rule = rules.async_rule()
        self._model = model_without_values(ledger)
        self._rule: AsyncRule | None = None
        self._weights_known = False
        if rule is not None:
            self._rule = rule.bind(self._model)
            # Participation corrections and the probabilities of routing depend on the costs of tasks.
            corrected = rules.method["update"].get("participation_correction")
            may_be_routed = not (rules.choices_known or rules.is_custom("schedule", "next_client"))
            costs_known = rules.table_known or not (corrected or may_be_routed)
            self._weights_known = costs_known and not rule.needs_values and not rules.is_custom("update", "staleness")
        self._balances = rules.balances()

    def commit(self, line: Line) -> None:
        task = self.clock.arrive(line)
        loss = line.number_of("train_loss")
        result = self._apply_rule(line, task.decision, loss)
        done = self.ledger.commit(
            task.decision.task,
            size_class=task.size_class,
            loss=loss,
            new_version=result.new_version,
            keep_task=result.keep_task,
            duration=self.clock.now - task.started,
            now=self.clock.now,
        )
        if self._rule is not None and task.decision.client in self.ledger.bad_clients.excluded:
            self._rule.leave(task.decision.client)
        weight = None
        if self._weights_known:
            weight = float(result.weight)
        self._check_update(line, done, weight)
        if self._rules.wall and self._rules.scheduled:
            self._observe_duration(line, task)

    def _observe_duration(self, line: Line, task: LoggedTask) -> None:
        """Update the cost estimates with a task's duration. A client's first task is slower, so it does not count."""
        real = training_time(self.clock.now - task.started, task.logged_cost, line.at_least("waited", 0))
        seconds = line.at_least("seconds", 0)
        decision = task.decision
        if decision.turn == 0:
            return
        widths = self._rules.resolved.fragments[decision.fragment]
        if self._rules.costs.observe(widths, decision.client, real, seconds):
            self._replan_tasks()

    def drop(self, line: Line) -> Dropped:
        dropped = super().drop(line)
        client = dropped.dispatch.client
        if self._rule is not None and client in self.ledger.bad_clients.excluded:
            self._rule.leave(client)
        return dropped

    def lost(self, line: Line) -> None:
        raise line.wrong("this line ends a task that was late; an asynchronous server has no rounds")

    def round(self, line: Line) -> None:
        raise line.wrong("this line ends a round; an asynchronous server has no rounds")

    def _assign_task(self, line: Line, client: int, fragment: int | None) -> Dispatch:
        may_resend = self._rule is not None or line["bytes_down"] == 0
        return self.ledger.assign(client, self.clock.now, fragment=fragment, may_resend=may_resend)

    def _drop_task(self, task: int) -> Dropped:
        return self.ledger.drop(task, self.clock.now)

    def _apply_rule(self, line: Line, decision: Dispatch, loss: float) -> ApplyResult:
        if self._rule is None:
            version = int(self.ledger.stats.counts[self.ledger.index(decision.fragment)])
            new_version = line.between("version", version, version + 1) > version
            # The check assumes that the client keeps its task. The client's next `dispatch` line shows if this is
            # right.
            return ApplyResult(0.0, new_version, keep_task=True)
        samples = self._rules.resolved.samples[decision.client]
        balance = self._balances[decision.client]
        update = update_without_values(self.ledger, decision, samples=samples, loss=loss, balance=balance)
        return self._rule.apply_update(update, self._model)

    def _replan_tasks(self) -> None:
        """Compute the participation corrections and the scheduler's plan from the current costs."""
        costs = self._rules.costs.table(self._rules.resolved.fragments)
        self.ledger.use_costs(costs, self._rules.method["schedule"]["delay_bound"])
        self._balances = self._rules.balances()


class RoundChecker(Checker[RoundLedger]):
    """A checker for servers in rounds. It computes the weights of updates from the configuration.

    If submodels and costs depend on the model's values, the checker accepts the submodels and costs in the log.
    """

    def __init__(self, rules: Rules) -> None:
        ledger = rules.round_ledger()
        super().__init__(rules, ledger, ledger.cohort)
        self._server_lr = rules.server_lr
        self._coverage = Coverage(rules)
        self._ends_at_deadline = False
        self._paces = None if rules.deadline is None else rules.deadline.paces

    def commit(self, line: Line) -> None:
        task = self.clock.arrive(line)
        if not self._rules.wall and self.clock.now > self.closes_at:
            raise line.field_error("t", f"at most {self.closes_at!r}, the deadline")
        decision = task.decision
        duration = self.clock.now - task.started
        if self._paces is not None and task.costs is not None:
            self._paces.record_update(decision.client, task.costs.flops, duration)
        done = self.ledger.commit(
            decision.task, size_class=task.size_class, loss=line.number_of("train_loss"), duration=duration
        )
        weight = None
        if self._server_lr is not None:
            weight = self._server_lr * self.ledger.weight(decision.client) / self.ledger.weight_sum
        self._check_update(line, done, weight)

    @property
    def end(self) -> RoundEnd | None:
        if self._rules.deadline is None:
            return None
        return self._rules.deadline.end_of(self.ledger.started)

    def lost(self, line: Line) -> None:
        if not self.ledger.in_flight:
            raise line.wrong("no task is in flight")
        reason = "count"
        if self.due is None:
            # Every task in flight would end only after the deadline.
            reason = "deadline"
            self.clock.close_late(line, self.closes_at)
        elif self._ends_at_deadline:
            reason = "deadline"
        self._ends_at_deadline = reason == "deadline"
        line.expect_value("reason", reason)
        task = self.clock.lose(line)
        elapsed = self.clock.now - task.started
        if self._paces is not None and task.costs is not None and reason == "deadline":
            self._paces.record_lost(task.decision.client, task.costs.flops, elapsed)
        self.ledger.lose(task.decision.task, elapsed)
        self.due = "lost" if self.ledger.in_flight else "round"

    def round(self, line: Line) -> None:
        self._ends_at_deadline = False
        if self.due is None and self.ledger.cohort:
            raise line.wrong(
                f"this line ends a round, but the round must wait for {len(self.ledger.in_flight)} more updates"
            )
        line.expect_value("t", self.clock.now)
        line.expect_value("round", self.ledger.step)
        line.expect_value("clients", self.ledger.reported)
        closed = self.ledger.step
        self._coverage.check(line, closed, self.ledger.close_round())
        self.due = None
        self.clock.waiting.extend(self.ledger.begin_round(self.clock.now))

    def _assign_task(self, line: Line, client: int, fragment: int | None) -> Dispatch:
        return self.ledger.assign(client, self.clock.now, fragment=fragment)

    def _drop_task(self, task: int) -> Dropped:
        return self.ledger.drop(task)
