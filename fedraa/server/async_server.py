"""The asynchronous server: fragments with versions of their own, updates taken in one at a time."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedraa.components.calls import calling
from fedraa.components.state import saved
from fedraa.ledger.concurrency import Concurrency
from fedraa.messages import State, Task, Update, Vector
from fedraa.rng import generator
from fedraa.server.planned_balance import planned_balances
from fedraa.server.stores.local import Store
from fedraa.server.tasks import InFlightTask, TaskTable, flight_state, restored_flights
from fedraa.submodels.assignment import Assignment, Submodel
from schedulers import Planner, Scheduler, Standing
from schedulers.protocol import Ints


class AsyncServer:
    """Fed-RAA's updater (Algorithm 1, Progress Server) and scheduler in one state machine.

    On every arrival of a fragment j: q(j) += 1, theta_j <- (1 - alpha_t) theta_j + alpha_t theta_new with
    alpha_t = alpha * s(q(j) at arrival - q(j) at dispatch). Both ends of the staleness are on the fragment's
    own clock; the paper's literal t - tau mixes two. Parameters in no width group are part of every fragment
    and mixed with the same alpha_t; they have a version of their own. FedAsync is one fragment.

    Here it is decided; the parameters themselves are in the `store`. Where its rule says so a client is given what it
    was sent before once more, and nothing is sent to it.

    `bound` is the delay bound; without one it is planned from the costs. With `learn`, costs follow real durations and
    a planned bound follows them. `balance` is the power of data against speed in arrivals' weights, which follow the
    costs, too. At most `concurrency` clients train at a time (None: all).
    """

    def __init__(
        self,
        store: Store,
        fragments: Sequence[Submodel],
        scheduler: Scheduler,
        task_table: TaskTable,
        *,
        bound: float | None,
        balance: float = 0.0,
        seed: int,
        learn: bool = False,
        concurrency: int | None = None,
    ) -> None:
        self.step = 0
        self.shared_version = 0
        self.task_table = task_table
        self.planner = Planner(scheduler)
        self._assignments = [Assignment(j, submodel) for j, submodel in enumerate(fragments)]
        self._standing = Standing.start(len(fragments))
        self._store, self._seed, self._learn, self._bound = store, seed, learn, bound
        self._concurrency = Concurrency(len(task_table.turns), concurrency, seed)
        self._busy: set[int] = set()
        self._held: dict[int, InFlightTask] = {}  # of clients that wait, what they are to train again
        self._balance = balance
        self._plan()

    @property
    def versions(self) -> Ints:
        """q(j) [M], updates taken in."""
        return self._standing.counts

    @property
    def params(self) -> Vector:
        return self._store.params

    def begin(self) -> Iterable[int]:
        return self._concurrency.first()

    def assign(self, client: int, now: float) -> Task:
        feasible = self.planner.feasible(client)
        held = self._held.pop(client, None)
        if held is None:
            j = self._choose(client, now, feasible)
            assignment, buffer = self._assignments[j], self._store.cut(j, self.shared_version)
            version, step = int(self.versions[j]), self.step
        else:
            assignment, buffer = held.assignment, held.task.buffer
            version, step = held.task.version, held.task.step
        self._standing.sent[assignment.label] += 1
        self._busy.add(client)
        return self.task_table.dispatch(
            client,
            now,
            assignment,
            buffer,
            version=version,
            step=step,
            feasible=feasible.tolist(),
            counts=self.versions.tolist(),
            held=held is not None,
        )

    def _choose(self, client: int, now: float, feasible: Ints) -> int:
        turn = int(self.task_table.turns[client])
        rng = generator(self._seed, "schedule", client, turn)
        with calling("scheduler", self.planner.scheduler):
            return self.planner.choose(client, turn, now, feasible, self._standing, rng)

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task, j = flight.task, flight.task.fragment
        staleness = int(self.versions[j]) - task.version
        global_staleness = self.step - task.step
        mix, advanced, held = self._store.take(task, update, staleness, float(self.balances[task.client]))
        if held:
            self._held[task.client] = flight
        self._standing.staleness[j], self._standing.losses[j] = staleness, update.loss
        if advanced:
            self.versions[j] += 1
            self.shared_version += 1
            self.step += 1
        self.task_table.settle(
            update,
            now,
            version=int(self.versions[j]),
            staleness=staleness,
            global_staleness=global_staleness,
            mix=mix,
        )
        if self._learn and self.task_table.costs.observe(task.widths, task.client, now - flight.left):
            self._plan()
        return self._next(task)

    def drop(self, task: int, what: str, now: float) -> Iterable[int]:
        dropped = self.task_table.in_flight[task].task
        self._store.drop(dropped)
        self._standing.sent[dropped.fragment] -= 1
        if self.task_table.drop(task, what, now):
            return (dropped.client,)
        self._store.leave(dropped.client)
        return self._next(dropped)

    def _next(self, task: Task) -> Iterable[int]:
        """Who is given work now that this task is over."""
        self._busy.discard(task.client)
        return self._concurrency.next(task.client, task.id, self._busy, self.task_table.bad_clients.left_out)

    def state(self) -> State:
        return {
            "params": self._store.params,
            "step": self.step,
            "versions": self.versions,
            "sent": self._standing.sent,
            "staleness": self._standing.staleness,
            "losses": self._standing.losses,
            "scheduler": saved(self.planner.scheduler),
            "shared_version": self.shared_version,
            "rule": self._store.state(),
            "ledger": self.task_table.state(
                self._store.sent([flight.task for flight in self.task_table.in_flight.values()])
            ),
            "costs": self.task_table.costs.state(),
            "held": [flight_state(flight) for flight in self._held.values()],
        }

    def restore(self, state: State) -> None:
        self.step = state["step"]
        self.versions[:], self.shared_version = state["versions"], state["shared_version"]
        self._standing.sent[:] = state["sent"]
        self._standing.staleness[:], self._standing.losses[:] = state["staleness"], state["losses"]
        self._store.restore(state["params"], state["rule"])
        self.task_table.restore(state["ledger"], self._store.sent_again)
        self._busy = {flight.task.client for flight in self.task_table.in_flight.values()}
        held = restored_flights(state.get("held", []), self._store.sent_again)  # which older checkpoints do not have
        self._held = {flight.task.client: flight for flight in held}
        self.task_table.costs.restore(state["costs"])
        self.planner.scheduler.restore(state["scheduler"])
        self._plan()

    def _plan(self) -> None:
        costs, shapes = self.task_table.costs, [assignment.submodel.widths for assignment in self._assignments]
        samples = np.array(self.task_table.sizes, np.int64)
        self.balances = planned_balances(costs, shapes, samples, self._balance, self._concurrency.most)
        with calling("scheduler", self.planner.scheduler):
            self.planner.plan(costs.table(shapes), self._bound)
