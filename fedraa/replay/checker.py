"""What the two kinds of server count, kept from the log alone: counts, versions, steps, weights."""

from collections.abc import Callable
from typing import Any, Protocol

from fedraa.components import is_foreign
from fedraa.replay.coverage import Coverage
from fedraa.replay.line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.tasks import LoggedTask, Tasks
from fedraa.rng import generator
from fedraa.server.async_rules import ASYNC_RULE
from fedraa.server.staleness import STALENESS
from schedulers import Planner, Standing


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
    """A commit is one update of its fragment, or goes to a buffer that is one when full; its client waits again.

    Of an own rule the log alone tells its weights, and whether the model is a new version.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._rule = None if is_foreign(update) else ASYNC_RULE.make(_ours(update))
        self._mix = None if self._rule is None or rules.foreign("update", "staleness") else _weight(update)
        self._buffered = 0
        self._standing = Standing.start(len(rules.resolved.fragments))
        self._planner = rules.planner()

    def dispatch(self, line: Line) -> None:
        client = self._tasks.next_client(line)
        j = scheduled(line, self._rules, client, self._tasks.turns[client], self._planner, self._standing)
        self._standing.sent[j] += 1
        bill = self._rules.bill(self._rules.resolved.fragments[j], client) if self._rules.known else None
        version = int(self._standing.counts[j])
        self._tasks.depart(line, fragment=j, version=version, step=self.step, bill=bill)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        j, counts = flight.fragment, self._standing.counts
        staleness = int(counts[j]) - flight.version
        global_staleness = self.step - flight.step
        if self._advances(line, int(counts[j])):
            counts[j] += 1
            self.step += 1
        self._standing.staleness[j] = staleness
        self._standing.losses[j] = line.number_of("train_loss")
        line.expect("version", int(counts[j]))
        line.expect("staleness", staleness)
        line.expect("global_staleness", global_staleness)
        if self._mix is not None:
            line.expect("mix", self._mix(staleness))
        else:
            line.number_of("mix")
        self._tasks.waiting.append(flight.client)
        if self._rules.wall:
            widths = self._rules.resolved.fragments[j]
            if self._rules.costs.observe(widths, flight.client, self._tasks.now - flight.left):
                self._planner = self._rules.planner()

    def drop(self, line: Line) -> None:
        flight, again = self._tasks.drop(line)
        if again:
            self._tasks.waiting.append(flight.client)

    def round(self, line: Line) -> None:
        raise line.wrong("a round is closed; the rules give none, for the server is asynchronous")

    def _advances(self, line: Line, version: int) -> bool:
        if self._rule is None:
            return line.between("version", version, version + 1) > version
        self._buffered = (self._buffered + 1) % self._rule.per_step
        return self._buffered == 0


class RoundChecker:
    """Every client of a round's cohort is given work once, and answers once or is dropped; that is one server update.

    Where a scheduler gives out fragments, `counts` rise as a round is assigned: by the next one they are the
    updates per fragment. Where a policy draws submodels with the help of the model, its label and its costs are
    taken from the log.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._server_lr = update["optimizer"].get("server_lr") if update["kind"] == "Mean" else update["mixing"]
        self._by_samples = update.get("weights") == "samples"
        self._standing = Standing.start(len(rules.resolved.fragments))
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
        self.due = None if self._tasks.flights else "round"

    def round(self, line: Line) -> None:
        if self.due is None:
            raise line.wrong(f"the round is closed; the rules wait for {len(self._tasks.flights)} more updates")
        line.expect("t", self._tasks.now)
        line.expect("round", self.step)
        line.expect("clients", len(self._round))
        self._coverage.check(line, self.step, [flight.fragment for flight in self._round])
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
    line.expect("counts", standing.counts.tolist())
    line.expect("feasible", feasible.tolist())
    if rules.foreign("schedule", "scheduler"):
        return int(line.between("fragment", 0, len(standing.counts) - 1))
    rng = generator(rules.experiment.seed, "schedule", client, turn)
    return planner.choose(client, turn, line.t, feasible, standing, rng)


def _weight(update: dict[str, Any]) -> Callable[[int], float]:
    """The weight of an arrival by its staleness, worked out from the configuration."""
    factor = STALENESS.make(update["staleness"])
    if update["kind"] == "Buffer":
        server_lr, size = update["server_lr"], update["size"]
        return lambda staleness: float(factor(staleness) * server_lr / size)
    mixing = update["mixing"]
    return lambda staleness: float(mixing * factor(staleness))


def _ours(update: dict[str, Any]) -> dict[str, Any]:
    """A rule of ours, with the usual weight in place of a foreign one: no code that is not ours is run here."""
    return update | ({"staleness": "constant"} if is_foreign(update.get("staleness")) else {})
