"""The tasks of a server: their buffers, costs and log events. The ledger decides which client gets which task."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from fedraa.client.compression import wire_bytes
from fedraa.components.state import Stateful
from fedraa.devices.availability import Timing
from fedraa.devices.costs import FLOAT32_BYTES, CostModel
from fedraa.devices.modelled_cost import trained_share
from fedraa.ledger.bad_clients import QUARANTINED
from fedraa.ledger.dispatch import Committed, Dispatch, Dropped
from fedraa.messages import KEPT_PREFIX, Buffer, Extra, ExtraBuffers, Mask, SharedBuffer, State, Task, Update, Vector
from fedraa.server.client_states import ClientStates
from fedraa.server.local_rates import LocalRates
from fedraa.server.partial_work import RoundEnd, cut_task
from fedraa.server.stores.local import shared_again
from fedraa.submodels.assignment import Assignment

# Weight of the newest update in the displayed mean staleness.
STALENESS_EMA_WEIGHT = 0.1


class Record(Protocol):
    """A function that writes an event to the log: `record(kind, t, **fields)`."""

    def __call__(self, kind: str, t: float, /, **fields: object) -> None: ...


@dataclass(frozen=True, eq=False)
class InFlightTask:
    """A task in flight and its submodel.

    Attributes:
        left: The time at which the server sent the task.
        training: The times after `left` at which the client begins and ends its training, before jitter.
    """

    task: Task
    assignment: Assignment
    left: float
    training: tuple[float, float]


class TaskTable(Stateful):
    """A table of tasks. It makes a task for each decision of the ledger, holds the tasks in flight, and logs events.

    Args:
        sizes: Number of training samples of each client.
        costs: The costs of tasks.
        record: Writes an event to the log.
        rates: The local learning rates.
        timing: The timing model, which gives the duration of each task.
        client_states: The values that clients keep between their tasks.
        shared: Mask [d] of the coordinates that clients send; None for all.
    """

    # `in_flight_state` saves `in_flight`, because the ledger holds the decisions, and a store may hold the buffers.
    state_fields: ClassVar[tuple[str, ...]] = (
        "applied",
        "quarantined",
        "costs",
        "client_states",
        "_rates",
        "_trained",
        "_taken",
    )

    def __init__(
        self,
        sizes: list[int],
        costs: CostModel,
        record: Record,
        rates: LocalRates,
        timing: Timing,
        *,
        client_states: ClientStates | None = None,
        shared: Mask | None = None,
    ) -> None:
        self.in_flight: dict[int, InFlightTask] = {}
        self.applied = np.zeros(len(sizes), np.int64)
        """The number of applied updates of each client."""
        self.quarantined: dict[int, str] = {}
        """For each quarantined client, the reason."""
        self.round_end: RoundEnd | None = None
        """The deadline of the current round; None if rounds have no deadline."""
        self.lost: list[int] = []
        """The tasks that were lost and for which the loop still waits. The loop empties this list."""
        self.staleness = 0.0
        self.sizes = sizes
        self.costs = costs
        self._record = record
        self._rates = rates
        self._timing = timing
        self.client_states = client_states or ClientStates((), np.zeros(0, np.float32), len(sizes))
        """The values that clients keep between their tasks."""
        self._shared = shared
        # Number of training samples in all applied updates.
        self._trained = 0.0
        # The number of minibatches in each client's tasks so far. The client's next task begins after them.
        self._taken = np.zeros(len(sizes), np.int64)

    def dispatch(
        self,
        decision: Dispatch,
        now: float,
        assignment: Assignment,
        buffer: Buffer,
        *,
        extras: Mapping[str, Extra] | None = None,
        extra_buffers: Sequence[ExtraBuffers] = (),
        traffic_sizes: tuple[int, int] | None = None,
        asks: tuple[str, ...] = (),
    ) -> Task:
        """Make a task from a decision, put it in flight and log it.

        Args:
            decision: The decision of the ledger.
            now: Time on the run's clock.
            assignment: The submodel.
            buffer: The parameters of the submodel.
            extras: Buffers that the task carries besides the parameters.
            extra_buffers: The numbers of additional buffers that the client receives and sends. They count as traffic.
            traffic_sizes: The numbers of coordinates that the client receives and sends. Traffic is computed from them.
                None stands for the submodel's number of coordinates.
            asks: Names of buffers that the update must contain besides the parameters.
        """
        client = decision.client
        widths = assignment.submodel.widths
        down, up = self._count_bytes(assignment, client, extra_buffers, traffic_sizes)
        if decision.resent:
            down = 0
        steps = self.costs.steps(widths, client)
        cut_at = cut_task(self.round_end, self.costs, widths, decision, now, (down, up), assignment.work)
        cost = self.costs.cost(widths, client, down, up, now, cut_at, assignment.work)
        task = Task(
            id=decision.task,
            client=client,
            turn=decision.turn,
            fragment=assignment.label,
            version=decision.version,
            step=decision.step,
            widths=widths,
            buffer=buffer,
            lr=self._rates.rate(self._run_progress(decision.step, now), widths),
            cost=cost.duration,
            mask=assignment.mask,
            keeps_rest=assignment.keeps_rest,
            extras={**(extras or {}), **self.client_states.send(client, assignment)},
            bytes_up=up,
            steps=steps,
            first=int(self._taken[client]),
            asks=asks + self.client_states.names,
            cut_at=cut_at,
            by_size=assignment.by_size,
        )
        if steps is not None:
            self._taken[client] += cut_at or steps
        adapted = task.lr if self._rates.is_adaptive else None
        size = task.size if task.by_size else None
        details = {"lr": adapted, "cut_at": cut_at, "energy": cost.energy, "size": size}
        self._record(
            "dispatch",
            now,
            task=task.id,
            client=client,
            fragment=assignment.label,
            version=task.version,
            step=task.step,
            cost=task.cost,
            feasible_fragments=list(decision.feasible),
            fragment_updates=list(decision.fragment_updates),
            bytes_down=down,
            **{name: value for name, value in details.items() if value is not None},
        )
        self.in_flight[task.id] = InFlightTask(task, assignment, now, cost.training)
        return task

    def commit(self, update: Update, done: Committed, weight: float, now: float, **optional: float) -> None:
        """Log an applied update, and remove its task from the tasks in flight.

        Args:
            update: The client update.
            done: The ledger's entry for the update.
            weight: Weight of the update.
            now: Time on the run's clock.
            optional: Fields that only some runs have: `unprotected`, `seconds` and `waited` (see History).
        """
        flight = self.in_flight.pop(update.task)
        task = flight.task
        self.client_states.receive(flight.assignment, update)
        self._rates.receive(update)
        self.applied[task.client] += 1
        self._trained += self.costs.samples(task.widths, task.client, task.cut_at)
        self.staleness += STALENESS_EMA_WEIGHT * (done.staleness.fragment - self.staleness)
        self._record(
            "commit",
            now,
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            base_version=task.version,
            version=done.version,
            staleness=done.staleness.fragment,
            staleness_total=done.staleness.total,
            weight=weight,
            bytes_up=task.bytes_up,
            samples=self.sizes[task.client],
            flops=self.count_flops(flight),
            train_loss=update.loss,
            **optional,
        )

    def drop(self, dropped: Dropped, error: str, now: float) -> None:
        """Log a failed task, and remove it from the tasks in flight.

        Args:
            dropped: The ledger's entry for the failed task.
            error: The reason of the failure.
            now: Time on the run's clock.
        """
        task = self.in_flight.pop(dropped.dispatch.task).task
        action = dropped.action
        if action == QUARANTINED:
            self.quarantined[task.client] = error
        self._record("drop", now, task=task.id, client=task.client, fragment=task.fragment, error=error, action=action)

    def lose(self, number: int, reason: str, now: float) -> None:
        """Log a task that was too late for its round, and remove it from the tasks in flight.

        The FLOPs of the finished part of its training still count.

        Args:
            number: The number of the task.
            reason: `count` if the round had enough updates, `deadline` if it closed at its deadline.
            now: Time on the run's clock.
        """
        flight = self.in_flight.pop(number)
        task = flight.task
        finished = self._timing.finished_cost(task.client, task.turn, flight.left, now)
        self.lost.append(number)
        self._record(
            "lost",
            now,
            task=number,
            client=task.client,
            fragment=task.fragment,
            reason=reason,
            flops=self.count_flops(flight) * trained_share(flight.training, finished),
        )

    def count_flops(self, flight: InFlightTask) -> float:
        """Return the FLOPs that a client needs for a task."""
        task = flight.task
        return self.costs.flops(task.widths, task.client, task.cut_at) * flight.assignment.work

    def mean_lr(self, task: Task, steps: int) -> float:
        """Return the mean learning rate over the first `steps` local steps of a task."""
        return task.lr * self._rates.mean_factor(steps)

    def path_length(self, task: Task, steps: int) -> float:
        """Return how far the weights would move in the first `steps` local steps if every gradient had length 1."""
        return self.costs.path_length(self.mean_lr(task, steps), steps)

    def _run_progress(self, step: int, now: float) -> float:
        """Return the run's progress in the unit of the learning-rate schedule: passes, time or steps."""
        if self._rates.unit == "passes":
            return self._trained / sum(self.sizes)
        if self._rates.unit == "time":
            return now
        return step

    def _count_bytes(
        self,
        assignment: Assignment,
        client: int,
        extra_buffers: Sequence[ExtraBuffers],
        traffic_sizes: tuple[int, int] | None,
    ) -> tuple[int, int]:
        """Return the bytes of a task's traffic, down and up. `dispatch` documents the arguments."""
        if self._shared is not None and assignment.mask is not None:
            assignment = assignment.restrict(self._shared)
        widths = assignment.submodel.widths
        sent = self.costs.sent(widths)
        crossing = int(self.costs.activation_bytes(self.costs.sample_passes(widths, client)))
        upload = partial(wire_bytes, self.costs.compressor)
        download = partial(wire_bytes, self.costs.download)
        down, up = assignment.bytes(sent // FLOAT32_BYTES, upload, download)
        if traffic_sizes is not None:
            down = download(traffic_sizes[0])
            up = upload(traffic_sizes[1])
        trained = sent
        if assignment.mask is not None:
            trained = FLOAT32_BYTES * int(assignment.mask.sum())
        received = trained if assignment.sends_mask else sent
        for more in extra_buffers:
            down += more.down * received
            up += more.up * trained + more.up_whole * sent
        return down + crossing, up + crossing

    def in_flight_state(self, sent: Mapping[int, Vector] | None = None) -> list[State]:
        """Return the tasks in flight as values for a checkpoint.

        `sent` has the values of the tasks' buffers by task number; None if the tasks hold the values.
        """
        if sent is None:
            return [flight_state(flight) for flight in self.in_flight.values()]
        return [flight_state(flight, sent[task]) for task, flight in self.in_flight.items()]

    def restore_in_flight(
        self,
        states: Sequence[State],
        decisions: Iterable[Dispatch],
        send: Callable[[list[Task]], list[Task]] | None = None,
    ) -> None:
        """Put the tasks of a checkpoint back in flight. Call this after all other values of the table are restored.

        Args:
            states: The result of `in_flight_state`.
            decisions: The decisions of the tasks, in the same order.
            send: Puts the buffers of all tasks into the server's store; None if the tasks hold the values.
        """
        flights = map(self._with_kept_buffers, restored_flights(states, decisions, send))
        self.in_flight = {flight.task.id: flight for flight in flights}

    def _with_kept_buffers(self, flight: InFlightTask) -> InFlightTask:
        """Return a restored task with the client's kept state, which a checkpoint holds in `client_states`."""
        kept = self.client_states.send(flight.task.client, flight.assignment)
        return replace(flight, task=replace(flight.task, extras={**flight.task.extras, **kept}))


def flight_state(flight: InFlightTask, params: Vector | None = None) -> State:
    """Return the state of a task in flight for a checkpoint. It does not contain the ledger's decision.

    `params` has the values [k] of the task's buffer; None if the task holds them.
    """
    task = flight.task
    return {
        "assignment": flight.assignment.state(),
        "left": flight.left,
        "training": flight.training,
        "params": task.params if params is None else params,
        "lr": task.lr,
        "cost": task.cost,
        "bytes_up": task.bytes_up,
        "steps": task.steps,
        "cut_at": task.cut_at,
        "first": task.first,
        "asks": list(task.asks),
        "extras": {name: task.extra_values(name) for name in task.extras if not name.startswith(KEPT_PREFIX)},
    }


def restored_flights(
    states: Sequence[State],
    decisions: Iterable[Dispatch],
    send: Callable[[list[Task]], list[Task]] | None,
) -> list[InFlightTask]:
    """Return a checkpoint's tasks in flight. `TaskTable.restore_in_flight` documents the arguments."""
    assignments = [Assignment.restored(state["assignment"]) for state in states]
    tasks = [
        _restored_task(state, decision, assignment)
        for state, decision, assignment in zip(states, decisions, assignments, strict=True)
    ]
    tasks = shared_again(tasks, lambda task: SharedBuffer(task.params)) if send is None else send(tasks)
    flights = zip(tasks, assignments, states, strict=True)
    return [
        InFlightTask(task, assignment, state["left"], tuple(state["training"])) for task, assignment, state in flights
    ]


def _restored_task(state: State, decision: Dispatch, assignment: Assignment) -> Task:
    return Task(
        id=decision.task,
        client=decision.client,
        turn=decision.turn,
        fragment=decision.fragment,
        version=decision.version,
        step=decision.step,
        widths=assignment.submodel.widths,
        buffer=state["params"],
        lr=state["lr"],
        cost=state["cost"],
        mask=assignment.mask,
        keeps_rest=assignment.keeps_rest,
        extras=state["extras"],
        bytes_up=state["bytes_up"],
        steps=state["steps"],
        first=state["first"],
        asks=tuple(state["asks"]),
        cut_at=state["cut_at"],
        by_size=assignment.by_size,
    )
