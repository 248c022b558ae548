"""The clock of a logged run, with the clients that wait for a task and the times at which running tasks must end."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from fedraa.devices.modelled_cost import trained_share
from fedraa.ledger.dispatch import Dispatch
from fedraa.ledger.due_queue import DueQueue
from fedraa.ledger.task_ledger import TaskLedger
from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules, TaskCosts


@dataclass(frozen=True)
class LoggedTask:
    """A task in flight, from `started` to `due` on the run's clock.

    Attributes:
        costs: The costs that the replay computed; None if they cannot be computed.
        logged_cost: The cost in the `dispatch` line.
        size_class: `Task.size_class` of the task.
    """

    decision: Dispatch
    started: float
    due: float
    costs: TaskCosts | None
    logged_cost: float
    size_class: int


class TaskClock:
    """A check of the times of tasks, and the queue of clients that wait for a task.

    The methods raise Inconsistent if a line contradicts the rules.

    Args:
        rules: The rules of the run.
        ledger: The decisions that the replay computes, with the failed clients and the tasks in flight.
        waiting: The clients that wait at the start.
    """

    def __init__(self, rules: Rules, ledger: TaskLedger, waiting: Iterable[int]) -> None:
        self.now = 0.0
        self.waiting = deque(waiting)
        self._rules = rules
        self._ledger = ledger
        self._tasks: dict[int, LoggedTask] = {}
        self._due = DueQueue()
        # A method with personal layers may send 0 bytes for a task: all layers of the submodel may be personal.
        self._personal = bool(rules.method["local"]["personal_layers"])

    def next_client(self, line: Line) -> int:
        """Remove the first client from the queue and return it.

        Raises Inconsistent if the `dispatch` line has another client, or the client is quarantined.
        """
        if not self.waiting:
            raise line.field_error("client", "no dispatch, because no client waits")
        if line.number_of("client") in self._ledger.bad_clients.left_out:
            raise line.field_error("client", "a client that is not quarantined")
        line.expect_value("client", self.waiting[0])
        return self.waiting.popleft()

    def depart(self, line: Line, decision: Dispatch, costs: TaskCosts | None) -> None:
        """Check that a `dispatch` line agrees with the computed decision and with the computed costs.

        Args:
            line: The `dispatch` event.
            decision: The decision that the replay computed.
            costs: The computed costs; None if they cannot be computed.
        """
        line.expect_value("fragment_updates", list(decision.fragment_updates))
        if self._rules.table_known:
            line.expect_value("feasible_fragments", list(decision.feasible))
        line.expect_value("t", self.now)
        line.expect_value("task", decision.task)
        line.expect_value("fragment", decision.fragment)
        line.expect_value("version", decision.version)
        line.expect_value("step", decision.step)
        if costs is not None:
            line.expect_value("cost", costs.modelled.duration)
            line.expect_value("bytes_down", costs.down)
            if costs.cut_at is not None:
                line.expect_value("cut_at", costs.cut_at)
            if costs.modelled.energy is not None:
                line.expect_value("energy", costs.modelled.energy)
        if self._rules.resolved.watts:
            line.at_least("energy", 0)
        cost = line.at_least("cost", 0)
        line.at_least("bytes_down", int(not (decision.resent or self._personal)))
        due = self._rules.timing.due(decision.client, decision.turn, self.now, cost)
        self._tasks[decision.task] = LoggedTask(decision, self.now, due, costs, cost, self._size_class(line, decision))
        if not self._rules.wall:
            self._due.push(due, decision.task)

    def arrive(self, line: Line) -> LoggedTask:
        """Check that a `commit` line ends a running task at the right time, and move the clock."""
        task = self.end(line)
        line.expect_value("base_version", task.decision.version)
        line.expect_value("samples", self._rules.resolved.samples[task.decision.client])
        if task.costs is not None:
            line.expect_value("bytes_up", task.costs.up)
            line.expect_value("flops", task.costs.flops)
        line.at_least("bytes_up", int(not self._personal))
        line.at_least("flops", 0)
        line.number_of("train_loss")
        return task

    def end(self, line: Line) -> LoggedTask:
        """Check that a line ends a running task at the right time, and move the clock."""
        number = self._in_flight(line)
        if self._rules.wall:
            self.advance_clock(line)
            due = self._tasks[number].due
            if line.t < due:
                raise line.field_error("t", f"{due!r}, when the task is due, or later")
        else:
            due, task = self._due.pop()
            line.expect_value("task", task)
            line.expect_value("t", due)
        task_ended = self._tasks.pop(number)
        self.now = line.t
        line.expect_value("client", task_ended.decision.client)
        line.expect_value("fragment", task_ended.decision.fragment)
        return task_ended

    def close_late(self, line: Line, closes_at: float) -> None:
        """Check that the first `lost` line of a round is not before the deadline, and move the clock.

        The virtual clock moves to the deadline, and no running task may be due by then. The wall clock moves to the
        time of the line.
        """
        if self._rules.wall:
            self.advance_clock(line)
            if line.t < closes_at:
                raise line.field_error("t", f"{closes_at!r}, the deadline, or later")
        elif self._due.next_due <= closes_at:
            raise line.wrong(f"task {self._due.next_task} is due before the deadline {closes_at!r}")
        else:
            self.now = closes_at

    def lose(self, line: Line) -> LoggedTask:
        """Check that a `lost` line has the current time, and names the running task that was sent first."""
        line.expect_value("t", self.now)
        line.expect_value("task", next(iter(self._ledger.in_flight)))
        task = self._tasks.pop(self._in_flight(line))
        line.expect_value("client", task.decision.client)
        line.expect_value("fragment", task.decision.fragment)
        line.at_least("flops", 0)
        if task.costs is not None:
            decision = task.decision
            finished = self._rules.timing.finished_cost(decision.client, decision.turn, task.started, self.now)
            line.expect_value("flops", task.costs.flops * trained_share(task.costs.modelled.training, finished))
        self._due.discard(task.decision.task)
        return task

    def check_fault(self, line: Line) -> None:
        """Check that a `fault` line names a task in flight, or no task."""
        self.advance_clock(line)
        if line["action"] != "none":
            self._in_flight(line)

    def first_due(self) -> float:
        """Return the time of the next update on the virtual clock."""
        return self._due.next_due

    def advance_clock(self, line: Line) -> None:
        """Check the time in a line, and move the clock.

        On the virtual clock, the line must have the clock's time. On the wall clock, it may have a later time.
        """
        if not self._rules.wall:
            line.expect_value("t", self.now)
        self.now = line.at_least("t", self.now)

    def _size_class(self, line: Line, decision: Dispatch) -> int:
        """Return the size of a sampled dense submodel from the `dispatch` line, or the task's fragment or label."""
        if self._rules.scheduled or "size" not in line.fields:
            return decision.fragment
        return int(line.between("size", 1, self._rules.resolved.parameters))

    def _in_flight(self, line: Line) -> int:
        """Return the id of the task that the line names. Raise Inconsistent if the task is not in flight."""
        task = line["task"]
        if not isinstance(task, int) or task not in self._ledger.in_flight:
            count = len(self._ledger.in_flight)
            raise line.field_error("task", f"one of the {count} in flight")
        return task
