"""The part of the ledger that all servers share: task numbers, tasks in flight, and failed clients."""

from collections.abc import Collection, Iterable
from typing import ClassVar

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful, save_state
from fedraa.errors import InputError
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import State
from fedraa.rng import generator
from schedulers import FragmentStats, SchedulerRunner, WrongChoice
from schedulers.protocol import Ints


class TaskLedger(Stateful):
    """A record of tasks: their numbers, the tasks in flight, the tasks of each client, and failed clients.

    The decisions depend only on the times and results that are passed in. The ledger reads no clock and opens no file.

    Attributes:
        step: Number of server updates, or rounds, so far.
        turns: Number of tasks of each client so far [N].
        in_flight: The tasks that have not ended, by number.
        stats: For every fragment [M]: the numbers of applied updates and sent tasks, the last staleness, the last loss.
        scheduler: Chooses the fragments. With None, the caller passes the label of each task.
        bad_clients: Decides between retry, quarantine and stop.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("step", "turns", "_next_task", "bad_clients")

    def __init__(
        self,
        *,
        clients: int,
        seed: int,
        bad_clients: BadClients,
        fragments: int = 1,
        scheduler: SchedulerRunner | None = None,
    ) -> None:
        self.step = 0
        self.turns: Ints = np.zeros(clients, np.int64)
        self.in_flight: dict[int, Dispatch] = {}
        self.stats = FragmentStats.start(fragments)
        self.scheduler = scheduler
        self.bad_clients = bad_clients
        self._seed = seed
        self._next_task = 0

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.turns)

    def feasible(self, client: int) -> Ints:
        """Return the fragments that the client can train within the delay bound, ascending.

        Without a scheduler the result is empty.
        """
        if self.scheduler is None:
            return np.empty(0, np.int64)
        return self.scheduler.feasible(client)

    def index(self, fragment: int) -> int:
        """Return the row of a fragment in `stats`. Without a scheduler, all submodels share row 0."""
        return 0 if self.scheduler is None else fragment

    def state(self) -> State:
        """Return the values for a checkpoint."""
        return super().state() | {
            "in_flight": dispatch_rows(self.in_flight.values()),
            "stats": dict(vars(self.stats)),
            "scheduler": {} if self.scheduler is None else save_state(self.scheduler.scheduler),
        }

    def restore(self, state: State) -> None:
        """Continue from the values of a checkpoint."""
        super().restore(state)
        self.in_flight = {dispatch.task: dispatch for dispatch in read_dispatches(state["in_flight"])}
        for name, values in vars(self.stats).items():
            values[:] = state["stats"][name]
        if self.scheduler is not None:
            self.scheduler.scheduler.restore(state["scheduler"])

    def _choose_fragment(self, client: int, now: float, feasible: Ints) -> int:
        assert self.scheduler is not None
        turn = int(self.turns[client])
        rng = generator(self._seed, "schedule", client, turn)
        with convert_errors("scheduler", self.scheduler.scheduler):
            try:
                return self.scheduler.choose(client, turn, now, feasible, self.stats, rng)
            except WrongChoice as error:
                raise InputError("scheduler", error.problem, expected=error.expected) from None

    def _send_task(
        self, client: int, fragment: int, *, version: int, step: int, resent: bool, feasible: Ints
    ) -> Dispatch:
        """Create the client's next task with a new number, and add this task to the tasks in flight.

        Args:
            client: The client.
            fragment: The fragment, or the label of a sampled submodel.
            version: Version of the fragment that is sent.
            step: Server step of the sent weights.
            resent: True if the client starts again from the parameters of its last task. The server then sends nothing.
            feasible: The client's fragments within the delay bound.
        """
        dispatch = Dispatch(
            task=self._next_task,
            client=client,
            turn=int(self.turns[client]),
            fragment=fragment,
            version=version,
            step=step,
            resent=resent,
            feasible=tuple(feasible.tolist()),
            fragment_updates=() if self.scheduler is None else tuple(self.stats.counts.tolist()),
        )
        self._next_task += 1
        self.turns[client] += 1
        self.bad_clients.count_tasks(client, int(self.turns[client]))
        self.stats.sent[self.index(fragment)] += 1
        self.in_flight[dispatch.task] = dispatch
        return dispatch

    def _finish_task(self, task: int) -> Dispatch:
        """Remove a task from the tasks in flight after its update was applied."""
        dispatch = self.in_flight.pop(task)
        self.bad_clients.count_success(dispatch.client)
        return dispatch

    def _fail_task(self, task: int) -> tuple[Dispatch, str]:
        """Remove a failed task from the tasks in flight.

        Return the task's dispatch, and what happens to the client: RETRY, QUARANTINED or STOP.
        """
        dispatch = self.in_flight.pop(task)
        self.stats.sent[self.index(dispatch.fragment)] -= 1
        return dispatch, self.bad_clients.count_failure(dispatch.client)


def dispatch_rows(decisions: Collection[Dispatch]) -> Ints:
    """Return decisions as an array [n, 7] for a checkpoint, without `feasible` and `fragment_updates`."""
    columns = [(d.task, d.client, d.turn, d.fragment, d.version, d.step, d.resent) for d in decisions]
    return np.array(columns, np.int64).reshape(-1, 7)


def read_dispatches(saved_rows: Ints) -> Iterable[Dispatch]:
    """Yield the decisions from an array that `dispatch_rows` returned."""
    for task, client, turn, fragment, version, step, resent in saved_rows.tolist():
        yield Dispatch(task, client, turn, fragment, version, step, bool(resent))
