"""What the two kinds of server count, kept from the log alone: counts, versions, steps, weights."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fedraa.components.text import describe, is_foreign
from fedraa.replay.coverage_check import Coverage
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.task_clock import LoggedTask, Tasks
from fedraa.rng import generator
from fedraa.server.async_rule import ASYNC_RULE, Arrival, AsyncModel, AsyncRule, Taken
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.staleness import STALENESS, among
from schedulers import Planner, Standing, once

EMPTY = np.zeros(0, np.float32)


class Checker(Protocol):
    """Checks the decisions and weights of one kind of server."""

    step: int
    """Server updates so far."""
    due: str | None
    """The only kind of line that may come next, if there is only one."""

    def dispatch(self, line: Line) -> None: ...

    def commit(self, line: Line) -> None: ...

    def drop(self, line: Line) -> None: ...

    def round(self, line: Line) -> None: ...


class AsyncChecker:
    """A commit is one update of its fragment if the rule says so, which works on a model without parameters here.

    Weights that staleness alone decides are worked out anew. Of an own rule the log alone tells its weights, whether
    the model is a new version, and whether a client went on with what it had.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        fragments = len(rules.resolved.fragments)
        self._model = AsyncModel(EMPTY, rules.clients, fragments, rules.concurrency.most)
        self._rule = None if is_foreign(update) else ASYNC_RULE.make(_ours(update)).bind(self._model)
        self._weight = _weight(rules, self._rule, self._model.at_work)
        self._last: dict[int, LoggedTask] = {}
        """What each client has answered last, if it may go on from there."""
        self._standing = Standing.start(fragments)
        self._plan()

    def _plan(self) -> None:
        """By the costs as they are known now."""
        scheduled = self._rules.scheduled
        self._planner = self._rules.planner() if scheduled else None
        self._balances = self._rules.balances() if scheduled else [1.0] * self._rules.clients

    def dispatch(self, line: Line) -> None:
        client = self._tasks.next_client(line)
        held = self._last.pop(client, None)
        if self._rule is None and line["bytes_down"] != 0:
            held = None
        if held is None:
            j = self._given(line, client)
            version, step = int(self._standing.counts[self._place(j)]), self.step
        else:
            self._audited(line, client)
            j, version, step = held.fragment, held.version, held.step
        self._standing.sent[self._place(j)] += 1
        widths = self._rules.resolved.fragments[self._place(j)]
        bill = self._rules.bill(widths, client, held=held is not None) if self._rules.known else None
        self._tasks.depart(line, fragment=j, version=version, step=step, bill=bill, held=held is not None)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        j, counts = self._place(flight.fragment), self._standing.counts
        staleness = int(counts[j]) - flight.version
        global_staleness = self.step - flight.step
        taken = self._taken(line, flight, staleness)
        if taken.held:
            self._last[flight.client] = flight
        if taken.advanced:
            counts[j] += 1
            self.step += 1
        self._standing.staleness[j] = staleness
        self._standing.losses[j] = line.number_of("train_loss")
        line.expect("version", int(counts[j]))
        line.expect("staleness", staleness)
        line.expect("global_staleness", global_staleness)
        mix = line.number_of("mix")
        line.expect("mix", self._weight(taken, staleness, self._balances[flight.client], mix))
        self._next(flight)
        if self._rules.wall and self._planner is not None:
            widths = self._rules.resolved.fragments[j]
            if self._rules.costs.observe(widths, flight.client, self._tasks.now - flight.left):
                self._plan()

    def drop(self, line: Line) -> None:
        flight, again = self._tasks.drop(line)
        self._standing.sent[self._place(flight.fragment)] -= 1
        if again:
            self._tasks.waiting.append(flight.client)
            return
        if self._rule is not None:
            self._rule.leave(flight.client)
        self._next(flight)

    def _next(self, flight: LoggedTask) -> None:
        """Somebody is given work now that this task is over."""
        concurrency, left_out = self._rules.concurrency, self._tasks.bad_clients.left_out
        busy = {other.client for other in self._tasks.flights.values()} if concurrency.limited else ()
        self._tasks.waiting.extend(concurrency.next(flight.client, flight.task, busy, left_out))

    def round(self, line: Line) -> None:
        raise line.wrong("a round is closed; the rules give none, for the server is asynchronous")

    def _given(self, line: Line, client: int) -> int:
        """What the client trains; what a policy draws is in the log."""
        if self._planner is None:
            self._audited(line, client)
            return 0 if self._rules.whole else int(line.at_least("fragment", 0))
        return scheduled(line, self._rules, client, self._tasks.turns[client], self._planner, self._standing)

    def _audited(self, line: Line, client: int) -> None:
        """Checks what the log says that a decision was made from: nothing, where a policy draws."""
        if self._planner is None:
            line.expect("feasible", [])
            line.expect("counts", [])
        else:
            audited(line, self._planner.feasible(client).tolist(), self._standing)

    def _place(self, label: int) -> int:
        """Which of the versions that are counted is that of what was trained: there is one where a policy draws."""
        return 0 if self._planner is None else label

    def _taken(self, line: Line, flight: LoggedTask, staleness: int) -> Taken:
        if self._rule is None:
            version = int(self._standing.counts[self._place(flight.fragment)])
            return Taken(0.0, line.between("version", version, version + 1) > version, held=True)  # if it then says so
        samples, loss = self._rules.resolved.samples[flight.client], line.number_of("train_loss")
        whole, balance = slice(None), self._balances[flight.client]
        arrival = Arrival(flight.client, flight.fragment, whole, EMPTY, EMPTY, staleness, samples, loss, balance)
        return self._rule.take(arrival, self._model)


class RoundChecker:
    """Every client of a round's cohort is given work once, and answers once or is dropped; that is one server update.

    Where a scheduler gives out fragments, `counts` rise as a round is assigned; by the next one they are the updates
    per fragment, one for each round in which it was trained. Where a policy draws
    submodels with the help of the model, its label and its costs are taken from the log.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._server_lr = _server_lr(update["optimizer"]) if update["kind"] == "Mean" else update["mixing"]
        self._by_samples = update.get("weights") == "samples"
        self._standing = Standing.start(len(rules.resolved.fragments))
        self._before = self._standing.counts.copy()
        self._planner = rules.planner() if rules.scheduled else None
        self._coverage = Coverage(rules)
        self._round: list[LoggedTask] = []
        self._weight_sum = 0.0

    def dispatch(self, line: Line) -> None:
        rules = self._rules
        client = self._tasks.next_client(line)
        if self._planner is not None:
            j = scheduled(line, rules, client, self._tasks.turns[client], self._planner, self._standing)
            self._standing.counts[j] += 1
            self._standing.sent[j] += 1
        else:
            line.expect("feasible", [])
            line.expect("counts", [])
            j = 0 if rules.whole else int(line.at_least("fragment", 0))
        bill = rules.bill(rules.resolved.fragments[j], client) if rules.known else None
        self._round.append(self._tasks.depart(line, fragment=j, version=self.step, step=self.step, bill=bill))
        self._weight_sum += self._weight(client)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        line.expect("version", self.step + 1)
        line.expect("staleness", 0)
        line.expect("global_staleness", 0)
        if self._server_lr is None:
            line.number_of("mix")
        else:
            line.expect("mix", self._server_lr * self._weight(flight.client) / self._weight_sum)
        self.due = None if self._tasks.flights else "round"

    def drop(self, line: Line) -> None:
        flight, _ = self._tasks.drop(line)
        self._round.remove(flight)
        if self._planner is not None:
            self._standing.counts[flight.fragment] -= 1
            self._standing.sent[flight.fragment] -= 1
        self.due = None if self._tasks.flights else "round"

    def round(self, line: Line) -> None:
        if self.due is None:
            raise line.wrong(f"the round is closed; the rules wait for {len(self._tasks.flights)} more updates")
        line.expect("t", self._tasks.now)
        line.expect("round", self.step)
        line.expect("clients", len(self._round))
        self._coverage.check(line, self.step, [flight.fragment for flight in self._round])
        once(self._standing.counts, self._before)
        self._round, self._weight_sum = [], 0.0
        self.due = None
        self.step += 1
        left_out = self._tasks.bad_clients.left_out
        if len(left_out) < self._rules.clients:
            self._tasks.waiting.extend(self._rules.cohort(self.step, left_out))

    def _weight(self, client: int) -> float:
        return float(self._rules.resolved.samples[client]) if self._by_samples else 1.0


def scheduled(line: Line, rules: Rules, client: int, turn: int, planner: Planner, standing: Standing) -> int:
    """The scheduler's choice for the client's `turn`-th task; checks what the log says it was made from.

    That of an own scheduler is in the log.
    """
    feasible = planner.feasible(client)
    audited(line, feasible.tolist(), standing)
    if rules.foreign("schedule", "scheduler"):
        return int(line.between("fragment", 0, len(standing.counts) - 1))
    rng = generator(rules.experiment.seed, "schedule", client, turn)
    return planner.choose(client, turn, line.t, feasible, standing, rng)


def audited(line: Line, feasible: list[int], standing: Standing) -> None:
    """Checks what the log says that a decision was made from."""
    line.expect("counts", standing.counts.tolist())
    line.expect("feasible", feasible)


def _weight(rules: Rules, rule: AsyncRule | None, at_work: int) -> Callable[[Taken, int, float, float], float]:
    """The weight of an arrival: by its staleness and its client's factor, worked out from the configuration.

    Of a rule of several arrivals, what it says; where only the run itself could know it, the one in the log.
    """
    update = rules.method["update"]
    if rule is None or rule.measures or rules.foreign("update", "staleness"):
        return lambda taken, staleness, balance, logged: logged
    if update.get("balance") and rules.foreign("local", "compress"):  # costs, and so rates, are not known
        return lambda taken, staleness, balance, logged: logged
    if update["kind"] not in ("Buffer", "StalenessMix", "DeltaMix"):
        return lambda taken, staleness, balance, logged: taken.weight
    factor = among(STALENESS.make(update["staleness"]), at_work)
    if update["kind"] == "StalenessMix":
        mixing = update["mixing"]
        return lambda taken, staleness, balance, logged: _times(balance, float(mixing * factor(staleness)))
    if update["kind"] == "DeltaMix":
        share = min(1.0, update["gain"] * (len(rules.resolved.fragments) / at_work))
        return lambda taken, staleness, balance, logged: float(_times(balance, share) * factor(staleness))
    if update.get("optimizer") is not None:  # how far the model moves is the optimizer's
        return lambda taken, staleness, balance, logged: float(factor(staleness)) * balance
    server_lr, size = update["server_lr"], update["size"]
    return lambda taken, staleness, balance, logged: float(factor(staleness)) * balance * server_lr / size


def _server_lr(optimizer: Any) -> Any:
    """That of an optimizer as it was written down; None if it is none of ours."""
    if isinstance(optimizer, str):  # which an own method may have
        optimizer = {} if is_foreign(optimizer) else describe(SERVER_OPTIMIZER.make(optimizer))
    return optimizer.get("server_lr")


def _times(balance: float, weight: float) -> float:
    return weight if balance == 1 else min(1.0, balance * weight)


def _ours(update: dict[str, Any]) -> dict[str, Any]:
    """A rule of ours, with usual parts in place of foreign ones: no code that is not ours is run here."""
    usual = {"staleness": "constant", "optimizer": "sgd"}
    return update | {name: given for name, given in usual.items() if is_foreign(update.get(name))}
