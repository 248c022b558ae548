"""The interface between the loop and a server, synchronous or not, and the inputs from which a server is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedraa.attacks.attack import AttackPlan
from fedraa.attacks.collusion import Collusion
from fedraa.devices.availability import Timing
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.selection_context import ClientFacts
from fedraa.ledger.task_ledger import TaskLedger
from fedraa.messages import Mask, State, Task, Update, Vector
from fedraa.privacy.noisy_sum import NoisySum
from fedraa.privacy.privacy import Privacy
from fedraa.server.selection import make_facts
from fedraa.server.stores.local import MakeSharedBuffer, Store
from fedraa.server.tasks import Record, TaskTable
from fedraa.submodels.assignment import Submodel
from fedraa.submodels.policies.policy import RunContext, SubmodelPolicy


class Server(Protocol):
    """A state machine: the loop passes events to the server, and the server answers with its decisions.

    A server update is one applied client update of an asynchronous server, or one round of a synchronous server.
    """

    @property
    def step(self) -> int:
        """The number of server updates so far."""

    @property
    def ledger(self) -> TaskLedger:
        """The ledger, which decides which client gets which task."""

    @property
    def task_table(self) -> TaskTable:
        """The tasks in flight with their buffers."""

    @property
    def params(self) -> Vector:
        """The current full model [d]."""

    @property
    def closes_at(self) -> float:
        """The time at which the round ends at the latest; infinite without a deadline."""

    def close_round(self, now: float) -> Iterable[int]:
        """End a round at its deadline, or a round that has no clients. Log a `lost` event for each task in flight.

        Return the clients that need a task.
        """

    def begin(self) -> Iterable[int]:
        """Return the clients that wait for a task at the start."""

    def assign(self, client: int, now: float) -> Task:
        """Return the next task of a waiting client, and log a `dispatch` event."""

    def commit(self, update: Update, now: float) -> Iterable[int]:
        """Apply the update or add it to its round, log a `commit` event, and return the clients that need a task."""

    def drop(self, task: int, error: str, now: float) -> Iterable[int]:
        """Drop a task that failed by its client's fault, and log a `drop` event. Return the clients that need a task.

        Args:
            task: The number of the task.
            error: The reason of the failure.
            now: Time on the run's clock.
        """

    def state(self) -> State:
        """Return the state for a checkpoint."""

    def restore(self, state: State) -> None:
        """Continue from a state that the method `state` has returned."""


@dataclass(frozen=True, eq=False)
class ServerSetup:
    """The inputs from which a server is built.

    Attributes:
        params: The initial model [d].
        submodels: The fragments from which a scheduler chooses.
        run: The run.
        policy: Chooses the submodel of each task.
        task_table: The tasks.
        record: Writes an event to the log.
        bad_clients: Decides about clients that fail.
        labels_held: True for the labels in each client's training data [N, classes].
        grad_mix: The weight of a client's gradient in local steps. The server's momentum has the weight 1 - `grad_mix`.
        learn: True if the estimated costs adapt to the real durations of tasks.
        store: Keeps an asynchronous server's parameters. With None, the server keeps them in this process.
        share: A function that returns a buffer with the given parameters, which several tasks can share.
        timing: The timing model, which gives the duration of each task.
        attack: The attack of some clients; None without attackers.
        privacy: Central privacy; None without it.
        shared: Mask [d] of the coordinates that clients send; None for all.
        rounds: The run's limit of server updates; None without a limit.
        full_weight: Mask [d] of coordinates to which the `shared_weight` of an AsyncRule does not apply; None for none.
        label_overlap: Mean overlap of a client's label frequencies with those of all clients; 1 if unknown.
        hides_losses: True if an AsyncRule receives no training losses, because privacy does not protect them.
    """

    params: Vector
    submodels: list[Submodel]
    run: RunContext
    policy: SubmodelPolicy
    task_table: TaskTable
    record: Record
    bad_clients: BadClients
    labels_held: npt.NDArray[np.bool_]
    grad_mix: float
    learn: bool
    store: Store | None
    share: MakeSharedBuffer
    timing: Timing
    attack: AttackPlan | None = None
    privacy: Privacy | None = None
    shared: Mask | None = None
    rounds: int | None = None
    full_weight: Mask | None = None
    label_overlap: float = 1.0
    hides_losses: bool = False

    @property
    def mean_steps(self) -> float:
        """Return the number of local steps of a task on the whole model, as the mean over the clients."""
        return float(self.task_table.costs.all_steps([self.run.whole().widths]).mean())

    def client_facts(self) -> ClientFacts:
        """Return the facts about the clients that a selection uses."""
        shapes = [submodel.widths for submodel in self.submodels]
        return make_facts(self.task_table.costs, shapes, self.task_table.sizes, self.timing)

    def make_collusion(self, voters: int) -> Collusion | None:
        """Return the collusion of attackers that know other clients' deltas, or None without collusion.

        A server with a buffer combines the deltas of the `voters` in the buffer. Other servers combine those of all
        clients.
        """
        if self.attack is None or not self.attack.attack.colludes:
            return None
        return Collusion(self.attack, self.run.traced.size, voters)

    def make_noisy_sum(self, cohort: float, *, whole: bool) -> NoisySum | None:
        """Return an object that clips deltas and adds the noise of central privacy; None without central privacy.

        Args:
            cohort: Expected number of clients in a round, or number of updates in a buffer.
            whole: True if the noise covers all coordinates in every release.
        """
        if self.privacy is None:
            return None
        return NoisySum(self.privacy, self.run.traced.size, cohort=cohort, whole=whole, seed=self.run.seed)
