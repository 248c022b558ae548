"""The book of tasks: what was sent to whom, what is still out. Both servers keep one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from fedraa.devices.costs import BYTES, CostModel
from fedraa.ledger.bad_clients import QUARANTINED, RETRY, BadClients
from fedraa.messages import EXTRA_PREFIX, Buffer, Extra, ExtraBuffers, SharedBuffer, State, Task, Update, Vector
from fedraa.server.optimizer_states import OptimizerStates
from fedraa.server.stores.local import shared_again
from fedraa.submodels.assignment import Assignment

FORGETTING = 0.1  # weight of the newest commit in the mean staleness that is shown


class Record(Protocol):
    """Where events go: `record(kind, t, **fields)`."""

    def __call__(self, kind: str, t: float, /, **fields: object) -> None: ...


@dataclass(frozen=True, eq=False)
class InFlightTask:
    """A task on its way, what it was cut from and when it left."""

    task: Task
    assignment: Assignment
    left: float


class TaskTable:
    """Numbers tasks, records `dispatch`, `commit` and `drop`, and knows what is in flight, and who is left out.

    `lr` gives the local learning rate, of a submodel of these widths, at a server step, or wherever the run is in what
    `counts` names: `time`, or `passes` over all training samples by the updates that were taken in. `mean_factor` is
    the mean over the local steps of a task of the factor on that rate. `optimizer_states` are those that clients keep.
    """

    def __init__(
        self,
        sizes: list[int],
        costs: CostModel,
        record: Record,
        lr: Callable[[float, tuple[int, ...]], float],
        bad_clients: BadClients | None = None,
        counts: str = "steps",
        *,
        mean_factor: Callable[[int], float] = lambda steps: 1.0,
        optimizer_states: OptimizerStates | None = None,
    ) -> None:
        self.turns = np.zeros(len(sizes), np.int64)
        self.in_flight: dict[int, InFlightTask] = {}
        self.applied = np.zeros(len(sizes), np.int64)
        """The number of updates of each client that were applied."""
        self.quarantined: dict[int, str] = {}
        """Why each client that is quarantined is."""
        self.staleness = 0.0
        self.sizes, self.costs = sizes, costs
        self.bad_clients = bad_clients or BadClients()
        self._record, self._lr, self._counts, self._mean_factor = record, lr, counts, mean_factor
        self._optimizer_states = optimizer_states or OptimizerStates(0, len(sizes), ())
        self._next = 0
        self._trained = 0.0  # samples, of the updates that were taken in
        self._taken = np.zeros(len(sizes), np.int64)  # minibatches of each client's tasks so far, where these go on

    def dispatch(
        self,
        client: int,
        now: float,
        assignment: Assignment,
        buffer: Buffer,
        *,
        version: int,
        step: int,
        feasible: list[int],
        counts: list[int],
        extras: Mapping[str, Extra] | None = None,
        extra_buffers: Sequence[ExtraBuffers] = (),
        moves: tuple[int, int] | None = None,
        asks: tuple[str, ...] = (),
        held: bool = False,
    ) -> Task:
        """The client's next task: `buffer`, that of the part as it stands, and the decision's audit trail.

        `extra_buffers` is billed besides the submodel, or besides the coordinates down and up that it `moves` in its
        place; what the client has `held` is not sent to it.
        """
        down, up = self._bytes(assignment, client, extra_buffers, moves)
        if held:
            down = 0
        task = Task(
            id=self._next,
            client=client,
            turn=int(self.turns[client]),
            fragment=assignment.label,
            version=version,
            step=step,
            widths=assignment.submodel.widths,
            buffer=buffer,
            lr=self._lr(self._at(step, now), assignment.submodel.widths),
            cost=self.costs.cost(assignment.submodel.widths, client, down, up),
            mask=assignment.mask,
            extras={**(extras or {}), **self._optimizer_states.send(client, assignment)},
            bytes_up=up,
            steps=(steps := self.costs.steps(assignment.submodel.widths, client)),
            first=int(self._taken[client]),
            asks=asks + self._optimizer_states.names,
        )
        self._taken[client] += steps or 0
        self._record(
            "dispatch",
            now,
            task=task.id,
            client=client,
            fragment=assignment.label,
            version=version,
            step=step,
            cost=task.cost,
            feasible=feasible,
            counts=counts,
            bytes_down=down,
        )
        self._next += 1
        self.turns[client] += 1
        self.in_flight[task.id] = InFlightTask(task, assignment, now)
        return task

    def settle(
        self, update: Update, now: float, *, version: int, staleness: int, global_staleness: int, mix: float
    ) -> None:
        """Record that the task is answered and that its update is in the model as `version`."""
        flight = self.in_flight.pop(update.task)
        task = flight.task
        self._optimizer_states.receive(flight.assignment, update)
        self.bad_clients.well(task.client)
        self.applied[task.client] += 1
        self._trained += self.costs.samples(task.widths, task.client)
        self.staleness += FORGETTING * (staleness - self.staleness)
        self._record(
            "commit",
            now,
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            base_version=task.version,
            version=version,
            staleness=staleness,
            global_staleness=global_staleness,
            mix=mix,
            bytes_up=task.bytes_up,
            samples=self.sizes[task.client],
            flops=self.costs.flops(task.widths, task.client),
            train_loss=update.loss,
        )

    def drop(self, number: int, what: str, now: float) -> bool:
        """The task came to nothing, by its client's fault; whether the client is to be given work again."""
        task = self.in_flight.pop(number).task
        action = self.bad_clients.failed(task.client)
        if action == QUARANTINED:
            self.quarantined[task.client] = what
        self._record("drop", now, task=task.id, client=task.client, fragment=task.fragment, what=what, action=action)
        return action == RETRY

    def mean_lr(self, task: Task, steps: int) -> float:
        """Return the mean learning rate of a task over so many local steps."""
        return task.lr * self._mean_factor(steps)

    def _at(self, step: int, now: float) -> float:
        """Where the run is, in what the learning rate's schedule counts."""
        if self._counts == "passes":
            return self._trained / sum(self.sizes)
        return now if self._counts == "time" else step

    def _bytes(
        self,
        assignment: Assignment,
        client: int,
        extra_buffers: Sequence[ExtraBuffers],
        moves: tuple[int, int] | None,
    ) -> tuple[int, int]:
        sent, crossing = self.costs.sent(assignment.submodel.widths), self.costs.crossing(client)
        down, up = assignment.bytes(sent // BYTES, self.costs.compressor.bytes, self.costs.download.bytes)
        if moves is not None:
            down, up = self.costs.download.bytes(moves[0]), self.costs.compressor.bytes(moves[1])
        trained = sent if assignment.mask is None else BYTES * int(assignment.mask.sum())
        received = trained if assignment.sends_mask else sent
        for more in extra_buffers:
            down += more.down * received
            up += more.up * trained + more.up_whole * sent
        return down + crossing, up + crossing

    def state(self, sent: Mapping[int, Vector] | None = None) -> State:
        """`sent` are the values of all tasks' buffers, by number; without it tasks carry them themselves."""
        return {
            "turns": self.turns,
            "applied": self.applied,
            "quarantined": [[client, what] for client, what in self.quarantined.items()],
            "taken": self._taken,
            "next": self._next,
            "trained": self._trained,
            "bad_clients": self.bad_clients.state(),
            "optimizer_states": self._optimizer_states.state(),
            "in_flight": [
                flight_state(flight, None if sent is None else sent[flight.task.id])
                for flight in self.in_flight.values()
            ],
        }

    def restore(self, state: State, send: Callable[[list[Task]], list[Task]] | None = None) -> None:
        """`send` brings the buffers of all tasks back to where they were; without it tasks carry them themselves."""
        self.turns[:], self._next = state["turns"], state["next"]
        self.applied[:] = state.get("applied", 0)  # which older checkpoints do not have
        self.quarantined = dict(map(tuple, state.get("quarantined", [])))  # likewise
        self._taken[:] = state.get("taken", 0)  # which older checkpoints do not have
        self._trained = state.get("trained", 0.0)  # likewise
        if "bad_clients" in state:  # likewise
            self.bad_clients.restore(state["bad_clients"])
        self._optimizer_states.restore(state.get("optimizer_states", {}))  # likewise
        flights = [self._with_optimizer_state(flight) for flight in restored_flights(state["in_flight"], send)]
        self.in_flight = {flight.task.id: flight for flight in flights}

    def _with_optimizer_state(self, flight: InFlightTask) -> InFlightTask:
        """Return a restored task with the client's kept state, which checkpoints hold only once."""
        kept = self._optimizer_states.send(flight.task.client, flight.assignment)
        return replace(flight, task=replace(flight.task, extras={**flight.task.extras, **kept}))


def flight_state(flight: InFlightTask, params: Vector | None = None) -> State:
    """`params` [k] are the values of its buffer; without them the task carries them itself."""
    return {
        "task": task_state(flight.task, flight.task.params if params is None else params),
        "choice": flight.assignment.state(),
        "left": flight.left,
    }


def restored_flights(
    states: Sequence[State], send: Callable[[list[Task]], list[Task]] | None = None
) -> list[InFlightTask]:
    """As `TaskTable.restore` has it."""
    assignments = [Assignment.restored(flight["choice"]) for flight in states]
    tasks = [restored_task(f["task"], assignment) for f, assignment in zip(states, assignments, strict=True)]
    tasks = shared_again(tasks, lambda task: SharedBuffer(task.params)) if send is None else send(tasks)
    flights = zip(tasks, assignments, states, strict=True)
    return [InFlightTask(task, assignment, flight["left"]) for task, assignment, flight in flights]


def task_state(task: Task, params: Vector) -> State:
    """All of a task but what its assignment knows; `params` are the values of its buffer [k]."""
    return {
        "id": task.id,
        "client": task.client,
        "turn": task.turn,
        "version": task.version,
        "step": task.step,
        "params": params,
        "lr": task.lr,
        "cost": task.cost,
        "bytes_up": task.bytes_up,
        "steps": task.steps,
        "first": task.first,
        "asks": list(task.asks),
        "extras": {name: task.extra(name) for name in task.extras if not name.startswith(EXTRA_PREFIX)},
    }


def restored_task(state: State, assignment: Assignment) -> Task:
    known = {name: value for name, value in state.items() if name != "params"} | {"buffer": state["params"]}
    known["asks"] = tuple(known.get("asks", ()))  # which older checkpoints do not have
    return Task(**known, fragment=assignment.label, widths=assignment.submodel.widths, mask=assignment.mask)
