"""Check the decisions and weights of a logged run: the ledger makes them again."""

from typing import Any, Protocol

import numpy as np

from fedraa.components.text import describe, is_foreign
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import RETRY
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.ledger.task_ledger import TaskLedger
from fedraa.replay.coverage_check import Coverage
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.task_clock import LoggedTask, TaskClock
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.optimizers import SERVER_OPTIMIZER

EMPTY = np.zeros(0, np.float32)


class Checker(Protocol):
    """A checker of the decisions and weights of one kind of server."""

    clock: TaskClock
    due: str | None
    """The only kind of line that may come next, if there is only one."""

    @property
    def ledger(self) -> TaskLedger:
        """The decisions."""

    def dispatch(self, line: Line) -> None: ...

    def commit(self, line: Line) -> None: ...

    def drop(self, line: Line) -> None: ...

    def round(self, line: Line) -> None: ...


class AsyncChecker:
    """A checker for asynchronous servers: the ledger decides again, and the rule works on a model without parameters.

    Some values are not checked, because only the run could decide them: the choices of a custom scheduler, and weights
    that depend on parameters. For a custom rule these are also whether the model has a new version and whether a client
    trained its buffer again.
    """

    def __init__(self, rules: Rules) -> None:
        update = rules.method["update"]
        fragments = len(rules.resolved.fragments)
        self.due: str | None = None
        self.ledger = AsyncLedger(
            clients=rules.clients,
            seed=rules.experiment.seed,
            bad_clients=rules.bad_clients(),
            fragments=fragments,
            scheduler=rules.planner() if rules.scheduled else None,
            concurrency=rules.concurrency,
        )
        self.clock = TaskClock(rules, self.ledger, self.ledger.first_clients())
        self._rules = rules
        self._model = AsyncModel(EMPTY, rules.clients, fragments, rules.concurrency)
        self._rule = None if is_foreign(update) else ASYNC_RULE.resolve(_built_in(update)).bind(self._model)
        # Without the costs of a custom compressor the balances are not known.
        self._weights_known = (
            self._rule is not None
            and not self._rule.needs_values
            and not rules.foreign("update", "staleness")
            and not (update.get("balance") and rules.foreign("local", "compress"))
        )
        self._balances = rules.balances() if rules.scheduled else [1.0] * rules.clients

    def dispatch(self, line: Line) -> None:
        client = self.clock.next_client(line)
        may_resend = self._rule is not None or line["bytes_down"] == 0
        fragment = believed_fragment(line, self._rules)
        decision = self.ledger.assign(client, self.clock.now, fragment=fragment, may_resend=may_resend)
        widths = self._rules.resolved.fragments[self.ledger.index(decision.fragment)]
        bill = self._rules.bill(widths, client, held=decision.resent) if self._rules.known else None
        self.clock.depart(line, decision, bill)

    def commit(self, line: Line) -> None:
        task = self.clock.arrive(line)
        number, client = task.decision.task, task.decision.client
        loss = line.number_of("train_loss")
        result = self._result(line, task)
        done = self.ledger.commit(number, loss=loss, new_version=result.new_version, keep_task=result.keep_task)
        line.expect("version", done.version)
        line.expect("staleness", done.staleness.fragment)
        line.expect("staleness_total", done.staleness.total)
        line.number_of("weight")
        if self._weights_known:
            line.expect("weight", float(result.weight))
        self.clock.waiting.extend(done.next_clients)
        if self._rules.wall and self._rules.scheduled:
            widths = self._rules.resolved.fragments[task.decision.fragment]
            if self._rules.costs.observe(widths, client, self.clock.now - task.left):
                self._replan()

    def drop(self, line: Line) -> None:
        task = self.clock.end(line)
        dropped = self.ledger.drop(task.decision.task)
        line.expect("action", dropped.action)
        if dropped.action != RETRY and self._rule is not None:
            self._rule.leave(task.decision.client)
        self.clock.waiting.extend(dropped.next_clients)

    def round(self, line: Line) -> None:
        raise line.wrong("a round is closed; the rules give none, for the server is asynchronous")

    def _result(self, line: Line, task: LoggedTask) -> ApplyResult:
        """Return the rule's result for the update."""
        decision = task.decision
        index = self.ledger.index(decision.fragment)
        if self._rule is None:
            version = int(self.ledger.stats.counts[index])
            new_version = line.between("version", version, version + 1) > version
            # The next dispatch of the client shows whether it trains its buffer again.
            return ApplyResult(0.0, new_version, keep_task=True)
        arrival = ClientUpdate(
            client=decision.client,
            fragment=index,
            where=slice(None),
            new=EMPTY,
            sent=EMPTY,
            staleness=self.ledger.staleness(decision.task).fragment,
            samples=self._rules.resolved.samples[decision.client],
            loss=line.number_of("train_loss"),
            balance=self._balances[decision.client],
        )
        return self._rule.apply_update(arrival, self._model)

    def _replan(self) -> None:
        """Derive the balances and the scheduler's plan from the current costs."""
        costs = self._rules.costs.table(self._rules.resolved.fragments)
        self.ledger.replan(costs, self._rules.method["schedule"]["delay_bound"])
        self._balances = self._rules.balances()


class RoundChecker:
    """A checker for servers in rounds: the ledger decides again, and the weights follow from the configuration.

    If a policy samples submodels with the help of the model, their labels and costs are not checked.
    """

    def __init__(self, rules: Rules) -> None:
        update = rules.method["update"]
        self.due: str | None = None
        self.ledger = RoundLedger(
            clients=rules.clients,
            seed=rules.experiment.seed,
            bad_clients=rules.bad_clients(),
            draw_cohort=rules.cohort,
            samples=rules.resolved.samples if update.get("weights") == "samples" else None,
            fragments=len(rules.resolved.fragments),
            scheduler=rules.planner() if rules.scheduled else None,
        )
        self.clock = TaskClock(rules, self.ledger, self.ledger.cohort)
        self._rules = rules
        self._server_lr = _server_lr(update["optimizer"]) if update["kind"] == "Mean" else update["mixing"]
        self._coverage = Coverage(rules)

    def dispatch(self, line: Line) -> None:
        client = self.clock.next_client(line)
        decision = self.ledger.assign(client, self.clock.now, fragment=believed_fragment(line, self._rules))
        widths = self._rules.resolved.fragments[self.ledger.index(decision.fragment)]
        bill = self._rules.bill(widths, client) if self._rules.known else None
        self.clock.depart(line, decision, bill)

    def commit(self, line: Line) -> None:
        task = self.clock.arrive(line)
        done = self.ledger.commit(task.decision.task, loss=line.number_of("train_loss"))
        line.expect("version", done.version)
        line.expect("staleness", done.staleness.fragment)
        line.expect("staleness_total", done.staleness.total)
        if self._server_lr is None:
            line.number_of("weight")
        else:
            weight = self.ledger.weight(task.decision.client)
            line.expect("weight", self._server_lr * weight / self.ledger.weight_sum)
        self.due = "round" if done.round_complete else None

    def drop(self, line: Line) -> None:
        task = self.clock.end(line)
        dropped = self.ledger.drop(task.decision.task)
        line.expect("action", dropped.action)
        self.due = "round" if dropped.round_complete else None

    def round(self, line: Line) -> None:
        if self.due is None:
            raise line.wrong(f"the round is closed; the rules wait for {len(self.ledger.in_flight)} more updates")
        line.expect("t", self.clock.now)
        line.expect("round", self.ledger.step)
        line.expect("clients", self.ledger.reported)
        closed = self.ledger.close_round()
        self._coverage.check(line, closed.round, list(closed.fragments))
        self.due = None
        self.clock.waiting.extend(self.ledger.begin_round())


def believed_fragment(line: Line, rules: Rules) -> int | None:
    """Return the logged fragment, or label, if only the run itself could choose it, or None if the ledger chooses."""
    if not rules.scheduled:
        return 0 if rules.whole else int(line.at_least("fragment", 0))
    if rules.foreign("schedule", "scheduler"):
        return int(line.between("fragment", 0, len(rules.resolved.fragments) - 1))
    return None


def _server_lr(optimizer: Any) -> Any:
    """Return the step size of a described optimizer, or None if it is a custom one."""
    # A custom method may describe it as a text.
    if isinstance(optimizer, str):
        optimizer = {} if is_foreign(optimizer) else describe(SERVER_OPTIMIZER.resolve(optimizer))
    return optimizer.get("server_lr")


def _built_in(update: dict[str, Any]) -> dict[str, Any]:
    """Return a built-in rule with built-in components in place of custom ones, because replay runs no custom code."""
    defaults = {"staleness": "constant", "optimizer": "sgd"}
    return update | {name: default for name, default in defaults.items() if is_foreign(update.get(name))}
