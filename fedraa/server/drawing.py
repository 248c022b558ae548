"""An asynchronous server whose submodels are drawn for every task by a policy, not given out by a scheduler."""

from collections.abc import Iterable

from fedraa.components.calls import calling
from fedraa.messages import SharedBuffer, State, Task, Update, Vector
from fedraa.server.async_rule import Arrival, AsyncModel, AsyncRule
from fedraa.server.stores.local import Share, rule_state, take_in
from fedraa.server.tasks import InFlightTask, TaskTable, flight_state, restored_flights
from fedraa.submodels.assignment import Submodel
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelSampler
from fedraa.vectors.chunked import cut
from fedraa.vectors.index_runs import where_of


class DrawingServer:
    """Every idle client is drawn a submodel, and its answer taken in at once, on the coordinates that it trained.

    The model has one version, which staleness counts. For a policy that is the round, and all clients are its cohort:
    what it shares in a round, tasks of the same version share, so that what it draws follows from the model alone.
    """

    def __init__(
        self,
        params: Vector,
        run: RunContext,
        sampler: SubmodelSampler,
        rule: AsyncRule,
        task_table: TaskTable,
        share: Share,
    ) -> None:
        self.params = params
        self.step = 0
        self.task_table = task_table
        self._run, self._sampler, self._share = run, sampler, share
        self._model = AsyncModel(params, run.clients, 1)
        self._rule = rule.bind(self._model)
        self._snapshots: dict[Submodel, SharedBuffer] = {}  # of the present version
        self._held: dict[int, InFlightTask] = {}  # of clients that wait, what they are to train again

    def begin(self) -> Iterable[int]:
        return range(len(self.task_table.turns))

    def assign(self, client: int, now: float) -> Task:
        held = self._held.pop(client, None)
        if held is not None:
            assignment, buffer = held.assignment, held.task.buffer
            version, step = held.task.version, held.task.step
        else:
            place = RoundContext(client, self.step, client, self._run.clients, now, self.params, self._run)
            assignment = self._sampler.draw(place)
            buffer, version, step = self._snapshot(assignment.submodel), self.step, self.step
        return self.task_table.dispatch(
            client, now, assignment, buffer, version=version, step=step, feasible=[], counts=[], held=held is not None
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task, assignment = flight.task, flight.assignment
        staleness = self.step - task.version
        arrival = Arrival(
            task.client,
            0,
            assignment.where,
            assignment.trained(update.params),
            assignment.trained(task.params),
            staleness,
            self.task_table.sizes[task.client],
            update.loss,
        )
        mix, advanced, held = take_in(self._rule, arrival, self._model)
        if held:
            self._held[task.client] = flight
        if advanced:
            self.step += 1
            self._snapshots = {}
        self.task_table.settle(update, now, version=self.step, staleness=staleness, global_staleness=staleness, mix=mix)
        return (task.client,)

    def drop(self, task: int, what: str, now: float) -> Iterable[int]:
        client = self.task_table.in_flight[task].task.client
        if self.task_table.drop(task, what, now):
            return (client,)
        with calling("async_rule", self._rule):
            self._rule.leave(client)
        return ()

    def state(self) -> State:
        return {
            "params": self.params,
            "step": self.step,
            "rule": rule_state(self._rule, self.params),
            "ledger": self.task_table.state(),
            "held": [flight_state(flight) for flight in self._held.values()],
        }

    def restore(self, state: State) -> None:
        self.params[:], self.step = state["params"], state["step"]
        self._rule.restore(state["rule"])
        self._snapshots = {}
        self.task_table.restore(state["ledger"])
        self._held = {flight.task.client: flight for flight in restored_flights(state["held"])}

    def _snapshot(self, submodel: Submodel) -> SharedBuffer:
        """The submodel as it stands: one buffer for all clients that train it."""
        if submodel not in self._snapshots:
            self._snapshots[submodel] = self._share(cut(self.params, where_of(submodel)))
        return self._snapshots[submodel]
