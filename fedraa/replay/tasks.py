"""Who trains what and until when, counted from the log alone."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from fedraa.fleet import jitter_factor
from fedraa.replay.line import Line
from fedraa.replay.rules import Rules, Widths
from fedraa.streams import generator
from schedulers import Scheduler


@dataclass(frozen=True)
class Flight:
    """A task on its way, from `left` to `due` on the run's clock."""

    task: int
    client: int
    fragment: int
    version: int
    step: int
    left: float
    due: float
    widths: Widths


class Tasks:
    """Numbers tasks, keeps the clock and knows which clients wait for work, in which order."""

    def __init__(self, rules: Rules) -> None:
        clients = len(rules.resolved.samples)
        self.now = 0.0
        self.waiting = deque(range(clients))
        self.flights: dict[int, Flight] = {}
        self._rules = rules
        self._turns = [0] * clients
        self._dispatched = 0

    def depart(self, line: Line, scheduler: Scheduler, counts: list[int], *, version: int | None, step: int) -> Flight:
        """Checks a `dispatch`: the client's turn, the scheduler's choice, the cost; `version` None is counts[j]."""
        if not self.waiting:
            raise line.wrong(f"client {line['client']!r} is given work; the rules give none, for no client waits")
        client = self.waiting.popleft()
        turn = self._turns[client]
        seed = self._rules.experiment.seed
        j = scheduler.choose(client, turn, np.array(counts), generator(seed, "schedule", client, turn))
        widths = self._rules.resolved.fragments[j]
        version = counts[j] if version is None else version
        cost = self._rules.costs.cost(widths, client)
        line.expect("t", self.now)
        line.expect("task", self._dispatched)
        line.expect("client", client)
        line.expect("counts", counts)
        line.expect("feasible", scheduler.feasible(client).tolist())
        line.expect("fragment", j)
        line.expect("version", version)
        line.expect("step", step)
        line.expect("cost", cost)
        line.expect("bytes_down", self._rules.shapes[widths].bytes)
        due = self.now + cost * jitter_factor(seed, self._rules.experiment.jitter, client, turn)
        flight = Flight(self._dispatched, client, j, version, step, self.now, due, widths)
        self.flights[flight.task] = flight
        self._turns[client] += 1
        self._dispatched += 1
        return flight

    def arrive(self, line: Line) -> Flight:
        """Checks that a `commit` answers a task in flight, when it was due, and moves the clock."""
        flight = self._in_flight(line)
        if self._rules.wall:
            self.advance(line)
            if line.t < flight.due:
                raise line.wrong(
                    f"t is {line.t!r}; the rules give {flight.due!r}, when task {flight.task} is due, or later"
                )
        else:
            first = self.first_due()
            line.expect("task", first.task)
            line.expect("t", first.due)
        del self.flights[flight.task]
        self.now = line.t
        line.expect("client", flight.client)
        line.expect("fragment", flight.fragment)
        line.expect("base_version", flight.version)
        line.expect("bytes_up", self._rules.shapes[flight.widths].bytes)
        line.expect("samples", self._rules.resolved.samples[flight.client])
        line.expect("flops", self._rules.costs.flops(flight.widths, flight.client))
        if line.number_of("train_loss") < 0:
            raise line.wrong(f"train_loss is {line['train_loss']!r}; the rules give at least 0")
        return flight

    def fault(self, line: Line) -> None:
        """Checks that a `fault` befell a task in flight."""
        self.advance(line)
        self._in_flight(line)

    def first_due(self) -> Flight:
        return min(self.flights.values(), key=lambda flight: (flight.due, flight.task))

    def advance(self, line: Line) -> None:
        """Checks the time of a line that stands for itself: on the wall clock time passes between events."""
        if not self._rules.wall:
            line.expect("t", self.now)
        elif line.t < self.now:
            raise line.wrong(f"t is {line.t!r}; the rules give at least {self.now!r}, the time of the line before")
        self.now = line.t

    def _in_flight(self, line: Line) -> Flight:
        task = line["task"]
        if not isinstance(task, int) or task not in self.flights:
            raise line.wrong(f"task is {task!r}; the rules give one of those in flight, {sorted(self.flights)}")
        return self.flights[task]
