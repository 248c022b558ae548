"""The asynchronous server, which applies each client update when it arrives."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import ClassVar

import numpy as np

from fedraa.attacks.collusion import Collusion
from fedraa.components.state import Stateful
from fedraa.devices.costs import training_time
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.messages import State, Task, Update, Vector
from fedraa.server.participation_correction import planned_balances
from fedraa.server.stores.local import Store
from fedraa.server.tasks import InFlightTask, TaskTable, flight_state, restored_flights
from fedraa.submodels.assignment import Assignment, Submodel

SampleSubmodel = Callable[[int, int, float, Vector], Assignment]
"""A function of the client, the server's step, the time and the model [d]. It returns the client's submodel."""


class AsyncServer(Stateful):
    """The server of Fed-RAA (Algorithm 1) and of every other method that applies updates one at a time.

    - The ledger chooses the next client and its fragment, and counts versions and staleness.
    - The store holds the parameters and applies the updates.
    - The task table makes the tasks and logs them.

    An update of fragment j changes the fragment's parameters and the version q(j). Parameters that cannot be cut, such
    as the biases of the output layer, are in every fragment. With one fragment this is FedAsync's server.

    Args:
        store: The parameters.
        ledger: Makes the scheduling decisions. Without a scheduler it counts versions of the whole model.
        task_table: The tasks.
        fragments: The fragments from which the scheduler chooses.
        sample: Draws a submodel for every task. It replaces the scheduler and the fragments.
        bound: The delay bound. With None it is derived from the costs.
        balance: The exponent of the participation correction. The corrections follow from samples and costs.
        learn: True if the estimated costs adapt to the real durations of tasks. A derived delay bound then also adapts.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("ledger", "task_table", "collusion")

    def __init__(
        self,
        store: Store,
        ledger: AsyncLedger,
        task_table: TaskTable,
        *,
        fragments: Sequence[Submodel] = (),
        sample: SampleSubmodel | None = None,
        bound: float | None = None,
        balance: float = 0.0,
        learn: bool = False,
    ) -> None:
        self.ledger = ledger
        self.task_table = task_table
        self._store = store
        self._assignments = [Assignment(j, submodel) for j, submodel in enumerate(fragments)]
        self._sample = sample
        self._bound = bound
        self._balance = balance
        self._learn = learn
        self.collusion: Collusion | None = None
        """The attack of clients that know the deltas of other clients. It replaces the attackers' updates."""
        # For each client that will train again from the weights of its last task: this last task.
        self._kept_flights: dict[int, InFlightTask] = {}
        self._plan_scheduler()

    @property
    def step(self) -> int:
        return self.ledger.step

    @property
    def params(self) -> Vector:
        return self._store.params

    @property
    def closes_at(self) -> float:
        return inf

    def close_round(self, now: float) -> Iterable[int]:
        raise AssertionError("an asynchronous server has no rounds")

    def begin(self) -> Iterable[int]:
        return self.ledger.first_clients()

    def assign(self, client: int, now: float) -> Task:
        if client in self.ledger.kept_tasks:
            decision = self.ledger.assign(client, now)
            kept = self._kept_flights.pop(client)
            return self.task_table.dispatch(decision, now, kept.assignment, kept.task.buffer)
        if self._sample is None:
            decision = self.ledger.assign(client, now)
            assignment = self._assignments[decision.fragment]
        else:
            assignment = self._sample(client, self.step, now, self.params)
            decision = self.ledger.assign(client, now, fragment=assignment.label)
        buffer = self._store.cut(assignment, self.step)
        return self.task_table.dispatch(decision, now, assignment, buffer)

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task = flight.task
        stale = self.ledger.staleness_for_weight(task.id)
        balance = float(self.balances[task.client])
        if self.collusion is not None:
            update = self.collusion.replace_update(task, flight.assignment, update, self.ledger.clients)
        length = self.task_table.path_length(task, update.steps)
        result = self._store.apply_update(task, flight.assignment, update, stale, balance, length)
        if result.keep_task:
            self._kept_flights[task.client] = flight
        done = self.ledger.commit(
            task.id,
            size_class=task.size_class,
            loss=update.loss,
            new_version=result.new_version,
            keep_task=result.keep_task,
            duration=now - flight.left,
            now=now,
        )
        if task.client in self.ledger.bad_clients.excluded:
            # This was the last of the client's tasks.
            self._store.leave(task.client)
        optional: dict[str, float] = {}
        if result.unprotected:
            optional["unprotected"] = result.unprotected
        if self._learn:
            optional |= {"seconds": update.seconds, "waited": update.waited}
        self.task_table.commit(update, done, result.weight, now, **optional)
        # A client's first task does not count, because the first steps of a worker take longer.
        if self._learn and task.turn > 0:
            real = training_time(now - flight.left, task.cost, update.waited)
            if self.task_table.costs.observe(task.widths, task.client, real, update.seconds):
                self._plan_scheduler()
        return done.next_clients

    def drop(self, task: int, error: str, now: float) -> Iterable[int]:
        failed = self.task_table.in_flight[task].task
        self._store.drop(failed)
        dropped = self.ledger.drop(task, now)
        self.task_table.drop(dropped, error, now)
        if failed.client in self.ledger.bad_clients.excluded:
            self._store.leave(failed.client)
        return dropped.next_clients

    def state(self) -> State:
        in_flight = [flight.task for flight in self.task_table.in_flight.values()]
        return super().state() | {
            "params": self._store.params,
            "rule": self._store.state(),
            "in_flight": self.task_table.in_flight_state(self._store.sent(in_flight)),
            "kept_tasks": [flight_state(flight) for flight in self._kept_flights.values()],
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        self._store.restore(state["params"], state["rule"])
        self.task_table.restore_in_flight(state["in_flight"], self.ledger.in_flight.values(), self._store.sent_again)
        kept = restored_flights(state["kept_tasks"], self.ledger.kept_tasks.values(), self._store.sent_again)
        self._kept_flights = {flight.task.client: flight for flight in kept}
        self._plan_scheduler()

    def _plan_scheduler(self) -> None:
        """Derive the participation corrections and the scheduler's plan from the current costs."""
        costs = self.task_table.costs
        shapes = [assignment.submodel.widths for assignment in self._assignments]
        samples = np.array(self.task_table.sizes, np.int64)
        self.balances = planned_balances(costs, shapes, samples, self._balance, self.ledger.concurrency.limit)
        if self.ledger.scheduler is not None:
            self.ledger.use_costs(costs.table(shapes), self._bound)
