"""Who trains what and until when, counted from the log alone."""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from fedraa.ledger.bad_clients import RETRY, BadClients
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Bill, Rules


@dataclass(frozen=True)
class LoggedTask:
    """A task on its way, from `left` to `due` on the run's clock; `bill` None: of a cost that the log alone knows."""

    task: int
    client: int
    fragment: int
    version: int
    step: int
    left: float
    due: float
    bill: Bill | None


class Tasks:
    """Numbers tasks, keeps the clock and knows which clients wait for work, in which order."""

    def __init__(self, rules: Rules, waiting: Iterable[int]) -> None:
        self.now = 0.0
        self.waiting = deque(waiting)
        self.flights: dict[int, LoggedTask] = {}
        self.turns = [0] * rules.clients
        """Tasks per client so far."""
        self.bad_clients = BadClients(rules.experiment.client_retries, stop=rules.experiment.on_bad_client == "stop")
        self._rules = rules
        self._dispatched = 0
        self._due: list[tuple[float, int]] = []

    def next_client(self, line: Line) -> int:
        """Checks that a `dispatch` goes to the client that waits first."""
        if not self.waiting:
            raise line.wrong(f"client is {line['client']!r}; the rules give none, for no client waits")
        if line.number_of("client") in self.bad_clients.left_out:
            raise line.wrong(f"client {line['client']} is given work; the rules have left it out")
        line.expect("client", self.waiting[0])
        return self.waiting[0]

    def depart(
        self, line: Line, *, fragment: int, version: int, step: int, bill: Bill | None, held: bool = False
    ) -> LoggedTask:
        """Checks that a `dispatch` gives this work to the client that waits first, at this cost.

        Nothing is sent to a client that has `held` what it trains.
        """
        client = self.waiting.popleft()
        line.expect("t", self.now)
        line.expect("task", self._dispatched)
        line.expect("fragment", fragment)
        line.expect("version", version)
        line.expect("step", step)
        if bill is not None:
            line.expect("cost", bill.cost)
            line.expect("bytes_down", bill.down)
        cost = line.at_least("cost", 0)
        line.at_least("bytes_down", 0 if held else 1)
        due = self._rules.timing.due(client, self.turns[client], self.now, cost)
        flight = LoggedTask(self._dispatched, client, fragment, version, step, self.now, due, bill)
        self.flights[flight.task] = flight
        if not self._rules.wall:
            heapq.heappush(self._due, (due, flight.task))
        self.turns[client] += 1
        self._dispatched += 1
        return flight

    def arrive(self, line: Line) -> LoggedTask:
        """Checks that a `commit` answers a task in flight, when it was due, and moves the clock."""
        flight = self._over(line)
        line.expect("base_version", flight.version)
        line.expect("samples", self._rules.resolved.samples[flight.client])
        if flight.bill is not None:
            line.expect("bytes_up", flight.bill.up)
            line.expect("flops", flight.bill.flops)
        line.at_least("bytes_up", 1)
        line.at_least("flops", 0)
        line.at_least("train_loss", 0)
        self.bad_clients.well(flight.client)
        return flight

    def drop(self, line: Line) -> tuple[LoggedTask, bool]:
        """Checks that a `drop` is of a task in flight, when it was due; the task, and whether its client goes on."""
        flight = self._over(line)
        action = self.bad_clients.failed(flight.client)
        line.expect("action", action)
        return flight, action == RETRY

    def _over(self, line: Line) -> LoggedTask:
        """Checks that a line ends a task in flight, when it was due, and moves the clock."""
        flight = self._in_flight(line)
        if self._rules.wall:
            self.advance(line)
            if line.t < flight.due:
                raise line.wrong(f"t is {line.t!r}; the rules give {flight.due!r}, when the task is due, or later")
        else:
            due, task = heapq.heappop(self._due)
            line.expect("task", task)
            line.expect("t", due)
        del self.flights[flight.task]
        self.now = line.t
        line.expect("client", flight.client)
        line.expect("fragment", flight.fragment)
        return flight

    def fault(self, line: Line) -> None:
        """Checks that a `fault` befell a task in flight, or none of them."""
        self.advance(line)
        if line["action"] != "none":
            self._in_flight(line)

    def first_due(self) -> float:
        """When the next update comes, on the virtual clock."""
        return self._due[0][0]

    def advance(self, line: Line) -> None:
        """Checks the time of a line that stands for itself: on the wall clock time passes between events."""
        if not self._rules.wall:
            line.expect("t", self.now)
        self.now = line.at_least("t", self.now)

    def _in_flight(self, line: Line) -> LoggedTask:
        task = line["task"]
        if not isinstance(task, int) or task not in self.flights:
            raise line.wrong(f"task is {task!r}; the rules give one of the {len(self.flights)} in flight")
        return self.flights[task]
