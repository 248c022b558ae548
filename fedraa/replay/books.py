"""The books of the two kinds of server, kept from the log alone: counts, versions, steps, weights."""

from typing import Protocol

from fedraa.replay.line import Line
from fedraa.replay.rules import Rules
from fedraa.replay.tasks import Flight, Tasks
from fedraa.server.staleness import STALENESS


class Book(Protocol):
    """Checks the decisions and weights of one kind of server."""

    counts: str
    """The kind of line that is one server update."""
    step: int
    """Server updates so far."""
    due: str | None
    """The only kind of line that may come next, if there is only one."""

    def dispatch(self, line: Line) -> None: ...

    def commit(self, line: Line) -> None: ...

    def round(self, line: Line) -> None: ...


class AsyncBook:
    """Every commit of fragment j is update q(j) + 1 of it and one server update; its client waits again."""

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.counts = "commit"
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._mixing, self._staleness = update["mixing"], STALENESS[update["staleness"]]
        self._counts = [0] * len(rules.resolved.fragments)
        self._scheduler = rules.scheduler()

    def dispatch(self, line: Line) -> None:
        self._tasks.depart(line, self._scheduler, self._counts, version=None, step=self.step)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        staleness = self._counts[flight.fragment] - flight.version
        global_staleness = self.step - flight.step
        self._counts[flight.fragment] += 1
        self.step += 1
        line.expect("version", self._counts[flight.fragment])
        line.expect("staleness", staleness)
        line.expect("global_staleness", global_staleness)
        line.expect("mix", self._mixing * self._staleness(staleness))
        self._tasks.waiting.append(flight.client)
        if self._rules.wall:
            self._rules.costs.observe(flight.widths, flight.client, self._tasks.now - flight.left)
            self._scheduler = self._rules.scheduler()

    def round(self, line: Line) -> None:
        raise line.wrong("a round is closed; the rules give none, for the server is asynchronous")


class RoundBook:
    """Every client of a round is given work once and answers once; then the round is one server update.

    `counts` rise as a round is assigned: by the next one they are the updates per fragment.
    """

    def __init__(self, rules: Rules, tasks: Tasks) -> None:
        update = rules.method["update"]
        self.counts = "round"
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._server_lr = update["server_lr"] if update["kind"] == "Mean" else update["mixing"]
        self._by_samples = update.get("weights") == "samples"
        self._counts = [0] * len(rules.resolved.fragments)
        self._scheduler = rules.scheduler()
        self._round: list[Flight] = []

    def dispatch(self, line: Line) -> None:
        flight = self._tasks.depart(line, self._scheduler, self._counts, version=self.step, step=self.step)
        self._counts[flight.fragment] += 1
        self._round.append(flight)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        weight_sum = sum(self._weight(member.client) for member in self._round)
        line.expect("version", self.step + 1)
        line.expect("staleness", 0)
        line.expect("global_staleness", 0)
        line.expect("mix", self._server_lr * self._weight(flight.client) / weight_sum)
        self.due = None if self._tasks.flights else "round"

    def round(self, line: Line) -> None:
        if self.due is None:
            raise line.wrong(f"the round is closed; the rules wait for {len(self._tasks.flights)} more updates")
        coverage = self._coverage()
        line.expect("t", self._tasks.now)
        line.expect("round", self.step)
        line.expect("clients", len(self._round))
        line.expect("coverage_min", min(coverage))
        line.expect("coverage_max", max(coverage))
        line.expect("uncovered", coverage.get(0, 0))
        self._tasks.waiting.extend(flight.client for flight in self._round)
        self._round = []
        self.due = None
        self.step += 1

    def _coverage(self) -> dict[int, int]:
        """How many coordinates were trained by how many clients of the round.

        A coordinate is shared by all fragments, part of one of them alone, or of none (the blocks between
        different fragments of two adjacent groups).
        """
        resolved = self._rules.resolved
        coordinates = {len(self._round): resolved.shared}
        held = resolved.shared
        for j, widths in enumerate(resolved.fragments):
            own = self._rules.shapes[widths].params - resolved.shared
            times = sum(flight.fragment == j for flight in self._round)
            coordinates[times] = coordinates.get(times, 0) + own
            held += own
        coordinates[0] = coordinates.get(0, 0) + resolved.parameters - held
        return {times: count for times, count in coordinates.items() if count}

    def _weight(self, client: int) -> float:
        return float(self._rules.resolved.samples[client]) if self._by_samples else 1.0
