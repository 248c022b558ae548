"""The decisions of both kinds of servers, computed again from the log only: counts, versions, steps, weights.

This second implementation checks the decisions of `fedraa.ledger`. It must not import the ledger.
"""

from typing import Any

from reference.task_clock import LoggedTask, Tasks

from fedraa.replay.log_line import Line
from fedraa.rng import generator
from fedraa.server.async_rule import ApplyResult
from schedulers import FragmentStats, SchedulerRunner, count_once


class AsyncChecker:
    """A checker of asynchronous logs. It reads from them which updates made a version, and which tasks are repeated."""

    def __init__(self, rules: Any, tasks: Tasks) -> None:
        self.step = 0
        self._rules, self._tasks = rules, tasks
        self._last: dict[int, LoggedTask] = {}
        """The last task that each client has answered."""
        self._stats = FragmentStats.start(rules.fragments)
        self._plan()

    def _plan(self) -> None:
        """Compute the delay bound and the feasible fragments from the current costs."""
        self._planner = self._rules.planner()

    def dispatch(self, line: Line) -> None:
        client = self._tasks.next_client(line)
        held = self._last.pop(client, None)
        if line["bytes_down"] != 0:
            held = None
        if held is None:
            j = self._choose_label(line, client)
            version, step = int(self._stats.counts[self._counter_index(j)]), self.step
        else:
            self._check_inputs(line, client)
            j, version, step = held.fragment, held.version, held.step
        self._stats.sent[self._counter_index(j)] += 1
        self._tasks.depart(line, fragment=j, version=version, step=step)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        j, counts = self._counter_index(flight.fragment), self._stats.counts
        staleness = int(counts[j]) - flight.version
        staleness_total = self.step - flight.step
        result = self._read_result(line, flight)
        if result.keep_task:
            self._last[flight.client] = flight
        if result.new_version:
            counts[j] += 1
            self.step += 1
        self._stats.staleness[j] = staleness
        self._stats.losses[j] = line.number_of("train_loss")
        line.expect_value("version", int(counts[j]))
        line.expect_value("staleness", staleness)
        line.expect_value("staleness_total", staleness_total)
        self._queue_next_clients(flight)
        if self._rules.costs_changed:
            self._plan()

    def drop(self, line: Line) -> None:
        flight, again = self._tasks.drop(line)
        self._stats.sent[self._counter_index(flight.fragment)] -= 1
        if again:
            self._tasks.waiting.append(flight.client)
            return
        self._queue_next_clients(flight)

    def _queue_next_clients(self, flight: LoggedTask) -> None:
        """Choose the next client after the end of this task."""
        concurrency, left_out = self._rules.concurrency, self._tasks.bad_clients.left_out
        busy = {other.client for other in self._tasks.flights.values()} if concurrency.limited else ()
        self._tasks.waiting.extend(concurrency.next_clients(flight.client, flight.task, busy, left_out))

    def _choose_label(self, line: Line, client: int) -> int:
        """Return the label of the client's submodel. The log has the labels that a policy draws."""
        if self._planner is None:
            self._check_inputs(line, client)
            return int(line.at_least("fragment", 0))
        return choose_fragment(line, self._rules, client, self._tasks.turns[client], self._planner, self._stats)

    def _check_inputs(self, line: Line, client: int) -> None:
        """Check the inputs of a decision in the log. The decision of a policy that draws submodels has no inputs."""
        if self._planner is None:
            line.expect_value("feasible_fragments", [])
            line.expect_value("fragment_updates", [])
        else:
            check_inputs(line, self._planner.feasible(client).tolist(), self._stats)

    def _counter_index(self, label: int) -> int:
        """Return the index of the counter of versions for a label. If a policy draws, there is only one counter."""
        return 0 if self._planner is None else label

    def _read_result(self, line: Line, flight: LoggedTask) -> ApplyResult:
        version = int(self._stats.counts[self._counter_index(flight.fragment)])
        return ApplyResult(0.0, line.between("version", version, version + 1) > version, keep_task=True)


class RoundChecker:
    """A checker of rounds: every client of a cohort gets one task, and its update arrives or the task is dropped."""

    def __init__(self, rules: Any, tasks: Tasks) -> None:
        self.step = 0
        self.due: str | None = None
        self._rules, self._tasks = rules, tasks
        self._stats = FragmentStats.start(rules.fragments)
        self._before = self._stats.counts.copy()
        self._planner = rules.planner()
        self._round: list[LoggedTask] = []
        self._weight_sum = 0.0

    def dispatch(self, line: Line) -> None:
        rules = self._rules
        client = self._tasks.next_client(line)
        if self._planner is not None:
            j = choose_fragment(line, rules, client, self._tasks.turns[client], self._planner, self._stats)
            self._stats.counts[j] += 1
            self._stats.sent[j] += 1
        else:
            line.expect_value("feasible_fragments", [])
            line.expect_value("fragment_updates", [])
            j = int(line.at_least("fragment", 0))
        self._round.append(self._tasks.depart(line, fragment=j, version=self.step, step=self.step))
        self._weight_sum += self._weight(client)

    def commit(self, line: Line) -> None:
        flight = self._tasks.arrive(line)
        line.expect_value("version", self.step + 1)
        line.expect_value("staleness", 0)
        line.expect_value("staleness_total", 0)
        line.expect_value("weight", self._weight(flight.client) / self._weight_sum)
        self.due = None if self._tasks.flights else "round"

    def drop(self, line: Line) -> None:
        flight, _ = self._tasks.drop(line)
        self._round.remove(flight)
        if self._planner is not None:
            self._stats.counts[flight.fragment] -= 1
            self._stats.sent[flight.fragment] -= 1
        self.due = None if self._tasks.flights else "round"

    def round(self, line: Line) -> None:
        if self.due is None:
            raise line.wrong(f"the round is closed; the rules wait for {len(self._tasks.flights)} more updates")
        line.expect_value("round", self.step)
        line.expect_value("clients", len(self._round))
        line.expect_value("fragments", sorted(flight.fragment for flight in self._round))
        count_once(self._stats.counts, self._before)
        self._round, self._weight_sum = [], 0.0
        self.due = None
        self.step += 1
        left_out = self._tasks.bad_clients.left_out
        if len(left_out) < self._rules.clients:
            self._tasks.waiting.extend(self._rules.cohort(self.step, left_out))

    def _weight(self, client: int) -> float:
        return float(self._rules.samples[client])


def choose_fragment(
    line: Line, rules: Any, client: int, turn: int, planner: SchedulerRunner, stats: FragmentStats
) -> int:
    """Return the scheduler's choice for the client's `turn`-th task, and check the inputs of the choice in the log."""
    feasible = planner.feasible(client)
    check_inputs(line, feasible.tolist(), stats)
    rng = generator(rules.experiment.seed, "schedule", client, turn)
    return planner.choose(client, turn, line.t, feasible, stats, rng)


def check_inputs(line: Line, feasible: list[int], stats: FragmentStats) -> None:
    """Check the inputs of a decision in the log."""
    line.expect_value("fragment_updates", stats.counts.tolist())
    line.expect_value("feasible_fragments", feasible)
