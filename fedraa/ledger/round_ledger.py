"""The ledger of a synchronous server, which decides about rounds and holds no parameters."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.dispatch import Committed, Dispatch, Dropped, Staleness
from fedraa.ledger.task_ledger import TaskLedger
from fedraa.messages import State
from schedulers import SchedulerRunner, count_once
from schedulers.protocol import Ints


class RoundLedger(TaskLedger):
    """The decisions of a synchronous server: cohorts, weights, and the end of a round.

    Every client of a cohort gets one task. With a scheduler, a task counts as an update of its fragment when it is
    assigned, so that the next client gets another fragment. At the end of the round, all updates of a fragment count as
    one.

    Attributes:
        cohort: The clients of the round, in the order in which they get their tasks.
        position: The position of each client in the cohort.
        weight_sum: Sum of the weights of the whole cohort, including clients that fail later.
        started: Time at which the round began.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_counts_before", "selector", "started")

    def __init__(
        self,
        *,
        clients: int,
        seed: int,
        bad_clients: BadClients,
        selector: ClientSelector,
        samples: Sequence[int] | None = None,
        fragments: int = 1,
        scheduler: SchedulerRunner | None = None,
    ) -> None:
        super().__init__(clients=clients, seed=seed, bad_clients=bad_clients, fragments=fragments, scheduler=scheduler)
        self.selector = selector
        self._samples = samples
        self._counts_before = self.stats.counts.copy()
        self.started = 0.0
        self._begin_round(self.selector.choose_cohort(self.step, 0.0, ()))

    @property
    def reported(self) -> int:
        """Number of clients that have reported in this round."""
        return len(self._reported)

    def begin_round(self, now: float) -> Sequence[int]:
        """Choose and return the cohort that starts at time `now`. It is empty if all clients are excluded."""
        excluded = sorted(self.bad_clients.excluded)
        if len(excluded) == self.clients:
            return ()
        self.started = now
        self._begin_round(self.selector.choose_cohort(self.step, now, excluded))
        return self.cohort

    def weight(self, client: int) -> float:
        """Return the client's weight in the mean: its number of samples, or 1 if all clients count equally."""
        return 1.0 if self._samples is None else float(self._samples[client])

    def assign(self, client: int, now: float, *, fragment: int | None = None) -> Dispatch:
        """Decide the task of a client of the cohort.

        Args:
            client: The client.
            now: Time on the run's clock.
            fragment: The fragment, or the number that identifies the sampled submodel. None if the scheduler chooses.
        """
        feasible = self.feasible(client)
        if fragment is None:
            fragment = self._choose_fragment(client, now, feasible)
        dispatch = self._send_task(client, fragment, version=self.step, step=self.step, resent=False, feasible=feasible)
        self.stats.counts[self.index(fragment)] += 1
        return dispatch

    def commit(self, task: int, *, loss: float, size_class: int | None = None, duration: float = 0.0) -> Committed:
        """Count the update of a client.

        Args:
            task: A task in flight.
            loss: Mean training loss of the task.
            size_class: `Task.size_class` of the task; None for its fragment.
            duration: Time since the task was sent.
        """
        dispatch = self._finish_task(task)
        if size_class is None:
            size_class = dispatch.fragment
        self.selector.record_update(dispatch.client, size_class, loss=loss, duration=duration, step=self.step)
        self.stats.losses[self.index(dispatch.fragment)] = loss
        self._reported.append(dispatch.fragment)
        self._missing -= 1
        return Committed(dispatch, self.step + 1, Staleness(0, 0), round_complete=self._is_complete())

    def drop(self, task: int) -> Dropped:
        """Record a failed task. Subtract the update that was counted for its fragment when the task was assigned."""
        dispatch, action = self._fail_task(task)
        self.stats.counts[self.index(dispatch.fragment)] -= 1
        self._missing -= 1
        return Dropped(dispatch, action, round_complete=self._is_complete())

    def lose(self, task: int, elapsed: float) -> None:
        """Record a task that is too late for its round, and subtract it from the two counts of its fragment.

        The count of sent tasks and the count of updates increased by 1 when the task was assigned.

        Args:
            task: A task in flight.
            elapsed: Time since the task was sent.
        """
        dispatch = self.in_flight.pop(task)
        index = self.index(dispatch.fragment)
        self.stats.counts[index] -= 1
        self.stats.sent[index] -= 1
        self._missing -= 1
        self.selector.record_lost(dispatch.client, elapsed)

    def close_round(self) -> list[int]:
        """End the round. Add one update to the count of each fragment that at least one client trained.

        Return the fragment of each client that reported, in the order of the reports. If submodels are sampled, it is
        the number that identifies the client's submodel.
        """
        count_once(self.stats.counts, self._counts_before)
        self.step += 1
        return self._reported

    def state(self) -> State:
        return super().state() | {
            "cohort": self._saved_cohort(),
            "missing": self._missing,
            "reported": np.array(self._reported, np.int64),
        }

    def restore(self, state: State) -> None:
        super().restore(state)
        cohort: Sequence[int] = range(self.clients)
        if state["cohort"] is not None:
            cohort = state["cohort"].tolist()
        self._begin_round(cohort)
        self._missing = state["missing"]
        self._reported[:] = state["reported"].tolist()

    def _is_complete(self) -> bool:
        """Return True if the round has all updates that it needs, or can get no more."""
        needed = self.selector.needed
        return self._missing == 0 or (needed is not None and self.reported >= needed)

    def _saved_cohort(self) -> Ints | None:
        """Return the cohort for a checkpoint. None stands for all clients, which would be a long list."""
        if isinstance(self.cohort, range):
            return None
        return np.array(self.cohort, np.int64)

    def _begin_round(self, cohort: Sequence[int]) -> None:
        self.cohort = cohort
        self.position = {client: position for position, client in enumerate(self.cohort)}
        self.weight_sum = sum(self.weight(client) for client in self.cohort)
        self._missing = len(self.cohort)
        self._reported: list[int] = []
