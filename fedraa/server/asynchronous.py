"""The asynchronous server: fragments with versions of their own, updates taken in one at a time."""

from collections.abc import Iterable, Sequence

from fedraa.components import calling, saved
from fedraa.messages import State, Task, Update, Vector
from fedraa.rng import generator
from fedraa.server.storage.store import Store
from fedraa.server.task_table import TaskTable
from fedraa.submodels.assignment import Assignment, Submodel
from schedulers import Planner, Scheduler, Standing
from schedulers.protocol import Ints


class AsyncServer:
    """Fed-RAA's updater (Algorithm 1, Progress Server) and scheduler in one state machine.

    On every arrival of a fragment j: q(j) += 1, theta_j <- (1 - alpha_t) theta_j + alpha_t theta_new with
    alpha_t = alpha * s(q(j) at arrival - q(j) at dispatch). Both ends of the staleness are on the fragment's
    own clock; the paper's literal t - tau mixes two. Parameters in no width group are part of every fragment
    and mixed with the same alpha_t; they have a version of their own. FedAsync is one fragment.

    Here it is decided; the parameters themselves are in the `store`.

    `bound` is the delay bound; without one it is planned from the costs. With `learn`, costs follow real
    durations and a planned bound follows them.
    """

    def __init__(
        self,
        store: Store,
        fragments: Sequence[Submodel],
        scheduler: Scheduler,
        task_table: TaskTable,
        *,
        bound: float | None,
        seed: int,
        learn: bool = False,
    ) -> None:
        self.step = 0
        self.shared_version = 0
        self.task_table = task_table
        self.planner = Planner(scheduler)
        self._assignments = [Assignment(j, submodel) for j, submodel in enumerate(fragments)]
        self._standing = Standing.start(len(fragments))
        self._store, self._seed, self._learn, self._bound = store, seed, learn, bound
        self._plan()

    @property
    def versions(self) -> Ints:
        """q(j) [M], updates taken in."""
        return self._standing.counts

    @property
    def params(self) -> Vector:
        return self._store.params

    def begin(self) -> Iterable[int]:
        return range(len(self.task_table.turns))

    def assign(self, client: int, now: float) -> Task:
        turn = int(self.task_table.turns[client])
        rng = generator(self._seed, "schedule", client, turn)
        feasible = self.planner.feasible(client)
        with calling("scheduler", self.planner.scheduler):
            j = self.planner.choose(client, turn, now, feasible, self._standing, rng)
        self._standing.sent[j] += 1
        return self.task_table.dispatch(
            client,
            now,
            self._assignments[j],
            self._store.cut(j, self.shared_version),
            version=int(self.versions[j]),
            step=self.step,
            feasible=feasible.tolist(),
            counts=self.versions.tolist(),
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task, j = flight.task, flight.task.fragment
        staleness = int(self.versions[j]) - task.version
        global_staleness = self.step - task.step
        mix, advanced = self._store.take(task, update, staleness)
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
        return (task.client,)

    def drop(self, task: int, what: str, now: float) -> Iterable[int]:
        dropped = self.task_table.in_flight[task].task
        self._store.drop(dropped)
        return (dropped.client,) if self.task_table.drop(task, what, now) else ()

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
        }

    def restore(self, state: State) -> None:
        self.step = state["step"]
        self.versions[:], self.shared_version = state["versions"], state["shared_version"]
        self._standing.sent[:] = state["sent"]
        self._standing.staleness[:], self._standing.losses[:] = state["staleness"], state["losses"]
        self._store.restore(state["params"], state["rule"])
        self.task_table.restore(state["ledger"], self._store.sent_again)
        self.task_table.costs.restore(state["costs"])
        self.planner.scheduler.restore(state["scheduler"])
        self._plan()

    def _plan(self) -> None:
        table = self.task_table.costs.table([assignment.submodel.widths for assignment in self._assignments])
        with calling("scheduler", self.planner.scheduler):
            self.planner.plan(table, self._bound)
