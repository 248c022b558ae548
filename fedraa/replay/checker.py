"""The books of the two kinds of server, kept from the log alone: counts, versions, steps, weights."""

from typing import Protocol

import numpy as np

from fedraa.replay.coverage import Coverage
from fedraa.replay.line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.tasks import LoggedTask, Tasks
from fedraa.rng import generator
from fedraa.server.staleness import STALENESS
from schedulers import Scheduler


class Checker(Protocol):
    """Checks the decisions and weights of one kind of server."""

    step: int
    """Server updates so far."""
    due: str | None
    """The only kind of line that may come next, if there is only one."""

    def dispatch(self, line: Line) -> None: ...

    def commit(self, line: Line) -> None: ...

    def round(self, line: Line) -> None: ...


class AsyncChecker:
    """A commit is one update of its fragment, or goes to a buffer that is one when full; its client waits again."""

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._staleness = STALENESS[update["staleness"]]
        self._buffer = update["size"] if update["kind"] == "Buffer" else 1
        self._update = update
        self._buffered = 0
        self._counts = [0] * len(rules.resolved.fragments)
        self._scheduler = rules.scheduler()

    def dispatch(self, line: Line) -> None:
        client = self._tasks.next_client(line)
        j = scheduled(line, self._rules, client, self._tasks.turns[client], self._scheduler, self._counts)
        bill = self._rules.bill(self._rules.resolved.fragments[j], client)
        self._tasks.depart(line, fragment=j, version=self._counts[j], step=self.step, bill=bill)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        j = flight.fragment
        staleness = self._counts[j] - flight.version
        global_staleness = self.step - flight.step
        self._buffered = (self._buffered + 1) % self._buffer
        if self._buffered == 0:
            self._counts[j] += 1
            self.step += 1
        line.expect("version", self._counts[j])
        line.expect("staleness", staleness)
        line.expect("global_staleness", global_staleness)
        line.expect("mix", self._mix(staleness))
        self._tasks.waiting.append(flight.client)
        if self._rules.wall:
            widths = self._rules.resolved.fragments[j]
            if self._rules.costs.observe(widths, flight.client, self._tasks.now - flight.left):
                self._scheduler = self._rules.scheduler()

    def round(self, line: Line) -> None:
        raise line.wrong("a round is closed; the rules give none, for the server is asynchronous")

    def _mix(self, staleness: int) -> float:
        s = self._staleness(staleness)
        if self._update["kind"] == "Buffer":
            return float(s * self._update["server_lr"] / self._buffer)
        return float(self._update["mixing"] * s)


class RoundChecker:
    """Every client of a round's cohort is given work once and answers once; then the round is one server update.

    Where a scheduler gives out fragments, `counts` rise as a round is assigned: by the next one they are the
    updates per fragment. Where a policy draws submodels with the help of the model, its label and its costs are
    taken from the log.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._server_lr = update["optimizer"]["server_lr"] if update["kind"] == "Mean" else update["mixing"]
        self._by_samples = update.get("weights") == "samples"
        self._counts = [0] * len(rules.resolved.fragments)
        self._scheduler = rules.scheduler() if rules.scheduled else None
        self._coverage = Coverage(rules)
        self._round: list[LoggedTask] = []
        self._weight_sum = 0.0

    def dispatch(self, line: Line) -> None:
        rules = self._rules
        client = self._tasks.next_client(line)
        if self._scheduler is not None:
            j = scheduled(line, rules, client, self._tasks.turns[client], self._scheduler, self._counts)
            self._counts[j] += 1
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
        line.expect("mix", self._server_lr * self._weight(flight.client) / self._weight_sum)
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
        self._tasks.waiting.extend(self._rules.cohort(self.step))

    def _weight(self, client: int) -> float:
        return float(self._rules.resolved.samples[client]) if self._by_samples else 1.0


def scheduled(line: Line, rules: Rules, client: int, turn: int, scheduler: Scheduler, counts: list[int]) -> int:
    """The scheduler's choice for the client's `turn`-th task; checks what the log says it was made from."""
    line.expect("counts", counts)
    line.expect("feasible", scheduler.feasible(client).tolist())
    rng = generator(rules.experiment.seed, "schedule", client, turn)
    return scheduler.choose(client, turn, np.array(counts), rng)
