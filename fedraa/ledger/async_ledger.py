"""The ledger of an asynchronous server, which decides about tasks and holds no parameters."""

from collections.abc import Sequence

from fedraa.components.calls import convert_errors
from fedraa.ledger.bad_clients import RETRY, BadClients
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.concurrency import Concurrency
from fedraa.ledger.dispatch import Committed, Dispatch, Dropped, Staleness
from fedraa.ledger.routed_tasks import RoutedTasks
from fedraa.ledger.task_ledger import TaskLedger, dispatch_rows, read_dispatches
from fedraa.messages import State
from schedulers import SchedulerRunner
from schedulers.protocol import Costs


class AsyncLedger(TaskLedger):
    """The decisions of an asynchronous server: fragment versions, staleness, next clients (Fed-RAA, Algorithms 1, 2).

    The staleness of an update is the number of updates of its fragment since the dispatch. The total staleness counts
    the updates of all fragments (t - tau in the paper).

    Attributes:
        kept_tasks: For each client that will train the buffer of its last task again: this task.
        concurrency: The limit on the number of clients that train at the same time.
        selector: Chooses the next client if `concurrency` has a limit. None: all idle clients have the same
            probability.
        staleness_clock: The staleness that sets the weight of an update: `fragment`, or `server` for the total.
        routing: Queues of tasks at the clients, which replace `concurrency` and `selector`; None without queues.
    """

    def __init__(  # noqa: PLR0913 - a call names its arguments
        self,
        *,
        clients: int,
        seed: int,
        bad_clients: BadClients,
        fragments: int = 1,
        scheduler: SchedulerRunner | None = None,
        concurrency: int | None = None,
        selector: ClientSelector | None = None,
        routing: RoutedTasks | None = None,
        staleness_clock: str = "fragment",
    ) -> None:
        super().__init__(clients=clients, seed=seed, bad_clients=bad_clients, fragments=fragments, scheduler=scheduler)
        self.kept_tasks: dict[int, Dispatch] = {}
        self.concurrency = Concurrency(clients, concurrency, seed)
        self.selector = selector
        self.staleness_clock = staleness_clock
        self.routing = routing
        self._busy: set[int] = set()

    def use_costs(self, costs: Costs, bound: float | None) -> None:
        """Use the costs c[n, j] [N, M] from now on. Compute the delay bound K* from them if `bound` is None."""
        assert self.scheduler is not None
        with convert_errors("scheduler", self.scheduler.scheduler):
            self.scheduler.plan(costs, bound)

    def first_clients(self) -> Sequence[int]:
        """Return the clients that get a task at the start."""
        if self.routing is not None:
            return self.routing.first_clients()
        if self.selector is None:
            return self.concurrency.first_clients()
        return self.selector.choose_first(self.concurrency.limit or self.clients)

    def assign(self, client: int, now: float, *, fragment: int | None = None, may_resend: bool = True) -> Dispatch:
        """Decide a client's next task.

        Args:
            client: A client that waits for a task.
            now: Time on the run's clock.
            fragment: The fragment, or the number that identifies the sampled submodel. None if the scheduler chooses.
            may_resend: True if a client in `kept_tasks` may train the buffer of its last task again.
        """
        feasible = self.feasible(client)
        kept = self.kept_tasks.pop(client, None)
        self._busy.add(client)
        if kept is not None and may_resend:
            return self._send_task(
                client, kept.fragment, version=kept.version, step=kept.step, resent=True, feasible=feasible
            )
        if fragment is None:
            fragment = self._choose_fragment(client, now, feasible)
        version = int(self.stats.counts[self.index(fragment)])
        return self._send_task(client, fragment, version=version, step=self.step, resent=False, feasible=feasible)

    def staleness(self, task: int) -> Staleness:
        """Return the staleness that the task's update would have if it arrived now."""
        dispatch = self.in_flight[task]
        version = int(self.stats.counts[self.index(dispatch.fragment)])
        return Staleness(version - dispatch.version, self.step - dispatch.step)

    def staleness_for_weight(self, task: int) -> int:
        """Return the task's fragment staleness or its total staleness, as `staleness_clock` selects."""
        staleness = self.staleness(task)
        if self.staleness_clock == "server":
            return staleness.total
        return staleness.fragment

    def commit(
        self,
        task: int,
        *,
        loss: float,
        new_version: bool,
        keep_task: bool,
        size_class: int | None = None,
        duration: float = 0.0,
        now: float = 0.0,
    ) -> Committed:
        """Count an update that was applied.

        Args:
            task: A task in flight.
            loss: Mean training loss of the task.
            new_version: True if the model has a new version.
            keep_task: True if the client trains the buffer of the task again.
            size_class: `Task.size_class` of the task; None for its fragment.
            duration: Time since the task was sent.
            now: Time on the run's clock.
        """
        staleness = self.staleness(task)
        dispatch = self._finish_task(task)
        if keep_task:
            self.kept_tasks[dispatch.client] = dispatch
        index = self.index(dispatch.fragment)
        self.stats.staleness[index] = staleness.fragment
        self.stats.losses[index] = loss
        if new_version:
            self.stats.counts[index] += 1
            self.step += 1
        if self.selector is not None:
            if size_class is None:
                size_class = dispatch.fragment
            self.selector.record_update(dispatch.client, size_class, loss=loss, duration=duration, step=self.step)
        return Committed(dispatch, int(self.stats.counts[index]), staleness, self._next_clients(dispatch, now))

    def drop(self, task: int, now: float = 0.0) -> Dropped:
        """Count a failed task. Return the action for its client, and the clients that get the next tasks.

        Args:
            task: A task in flight.
            now: Time on the run's clock.
        """
        dispatch, action = self._fail_task(task)
        if action == RETRY and dispatch.client not in self.bad_clients.excluded:
            return Dropped(dispatch, action, (dispatch.client,))
        return Dropped(dispatch, action, self._next_clients(dispatch, now))

    def state(self) -> State:
        selector = {} if self.selector is None else self.selector.state()
        state = super().state() | {"kept_tasks": dispatch_rows(self.kept_tasks.values()), "selector": selector}
        if self.routing is not None:
            state["routing"] = self.routing.state()
        return state

    def restore(self, state: State) -> None:
        super().restore(state)
        self.kept_tasks = {dispatch.client: dispatch for dispatch in read_dispatches(state["kept_tasks"])}
        self._busy = {dispatch.client for dispatch in self.in_flight.values()}
        if self.selector is not None:
            self.selector.restore(state["selector"])
        if self.routing is not None:
            self.routing.restore(state["routing"])

    def _next_clients(self, dispatch: Dispatch, now: float) -> tuple[int, ...]:
        """Return the clients that get a task after the task of `dispatch` has ended."""
        self._busy.discard(dispatch.client)
        if self.routing is not None:
            return self.routing.next_clients(dispatch.client, dispatch.task, self.bad_clients.excluded)
        if self.selector is not None:
            excluded = self._busy | self.bad_clients.excluded
            return tuple(self.selector.choose_next(dispatch.task, step=self.step, now=now, excluded=excluded))
        return self.concurrency.next_clients(dispatch.client, dispatch.task, self._busy, self.bad_clients.excluded)
