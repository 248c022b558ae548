"""Task numbers, turns, waiting clients and failed clients, computed again from the log only.

This second implementation checks the ledger, and must not import it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedraa.ledger.bad_clients import RETRY, BadClients
from fedraa.replay.log_line import Line


@dataclass(frozen=True)
class LoggedTask:
    """A task in flight."""

    task: int
    client: int
    fragment: int
    version: int
    step: int


class Tasks:
    """Numbers tasks, and keeps the clients that wait for a task in their order."""

    def __init__(self, rules: Any, waiting: Iterable[int]) -> None:
        self.waiting = deque(waiting)
        self.flights: dict[int, LoggedTask] = {}
        self.turns = [0] * rules.clients
        """Tasks per client so far."""
        self.bad_clients = BadClients(rules.experiment.client_retries, stop=rules.experiment.on_bad_client == "stop")
        self._rules = rules
        self._dispatched = 0

    def next_client(self, line: Line) -> int:
        """Check that a `dispatch` goes to the client that waits first."""
        if not self.waiting:
            raise line.wrong(f"client is {line['client']!r}; the rules give none, for no client waits")
        if line.number_of("client") in self.bad_clients.left_out:
            raise line.wrong(f"client {line['client']} is given work; the rules have left it out")
        line.expect_value("client", self.waiting[0])
        return self.waiting[0]

    def depart(self, line: Line, *, fragment: int, version: int, step: int) -> LoggedTask:
        """Check that a `dispatch` gives this work to the client that waits first."""
        client = self.waiting.popleft()
        line.expect_value("task", self._dispatched)
        line.expect_value("fragment", fragment)
        line.expect_value("version", version)
        line.expect_value("step", step)
        flight = LoggedTask(self._dispatched, client, fragment, version, step)
        self.flights[flight.task] = flight
        self.turns[client] += 1
        self._dispatched += 1
        return flight

    def arrive(self, line: Line) -> LoggedTask:
        """Check that a `commit` answers a task in flight."""
        flight = self._end_task(line)
        line.expect_value("base_version", flight.version)
        self.bad_clients.count_success(flight.client)
        return flight

    def drop(self, line: Line) -> tuple[LoggedTask, bool]:
        """Check that a `drop` is of a task in flight. Return the task, and True if its client gets another task."""
        flight = self._end_task(line)
        action = self.bad_clients.count_failure(flight.client)
        line.expect_value("action", action)
        return flight, action == RETRY

    def _end_task(self, line: Line) -> LoggedTask:
        """Check that a line ends a task in flight."""
        flight = self._in_flight(line)
        del self.flights[flight.task]
        line.expect_value("client", flight.client)
        line.expect_value("fragment", flight.fragment)
        return flight

    def _in_flight(self, line: Line) -> LoggedTask:
        task = line["task"]
        if not isinstance(task, int) or task not in self.flights:
            raise line.wrong(f"task is {task!r}; the rules give one of the {len(self.flights)} in flight")
        return self.flights[task]
