"""The synchronous server: rounds with a barrier, alternate to the asynchronous one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedraa.messages import SharedBuffer, Task, Update, Vector
from fedraa.rng import generator
from fedraa.rundir.checkpoint import State
from fedraa.server.aggregation.aggregate import Aggregator
from fedraa.server.auxiliary.state import AuxiliaryState
from fedraa.server.optimizers import ServerOptimizer
from fedraa.server.participation import Participation
from fedraa.server.task_table import Record, TaskTable
from fedraa.submodels.policies.policies import Assignment, Mask, RoundContext, Submodel, SubmodelSampler
from schedulers import Scheduler


@dataclass
class ScheduledSampler(AuxiliaryState):
    """Sync Fed-RAA: the scheduler's fragment, with counts that rise as the round is assigned.

    Every task of a round returns before the next, so these provisional counts are the real ones by then.
    """

    fragments: Sequence[Submodel]
    scheduler: Scheduler
    seed: int
    counts: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.fragments), np.int64)

    def draw(self, turn: RoundContext) -> Assignment:
        rng = generator(self.seed, "schedule", turn.client, turn.round)
        j = self.scheduler.choose(turn.client, turn.round, self.counts, rng)
        self.counts[j] += 1
        return Assignment(j, self.fragments[j])

    def state(self) -> State:
        return {"counts": self.counts}

    def restore(self, state: State) -> None:
        self.counts[:] = state["counts"]


class RoundServer:
    """Each round a cohort trains what `sampler` gives it; then theta steps along the mean gain.

    With full models, the mean weighted by samples and a step of 1 this is FedAvg (McMahan et al. 2017,
    Algorithm 1); every other synchronous method changes the drawer, the aggregate, the stepper or what rides
    along (`auxiliaries`). `held` [clients, d], where given, tells which coordinates a client may report
    (HeteroFL's label-aware head).
    """

    def __init__(
        self,
        params: Vector,
        sampler: SubmodelSampler,
        aggregator: Aggregator,
        optimizer: ServerOptimizer,
        auxiliaries: Sequence[AuxiliaryState],
        participation: Participation,
        task_table: TaskTable,
        record: Record,
        *,
        weights: str,
        seed: int,
        held: Callable[[int], Mask] | None = None,
    ) -> None:
        self.params = params
        self.step = 0
        self.task_table = task_table
        self._sampler, self._aggregator, self._optimizer = sampler, aggregator, optimizer
        self._auxiliaries, self._participation = auxiliaries, participation
        self._record, self._seed, self._held = record, seed, held
        self._by_samples = weights == "samples"
        self._snapshots: dict[Submodel | None, SharedBuffer] = {}  # None: of the whole model
        self._last_trained = np.full(len(params), -1, np.int64)
        self._begin_round()

    def begin(self) -> Iterable[int]:
        return self._cohort

    def assign(self, client: int, now: float) -> Task:
        feasible, counts = self._audit(client)
        turn = RoundContext(client, self.step, self._position[client], len(self._cohort), self.params)
        assignment = self._sampler.draw(turn)
        extras: dict[str, Vector | SharedBuffer] = {}
        for auxiliary in self._auxiliaries:
            extras |= auxiliary.send(client, assignment)
        return self.task_table.dispatch(
            client,
            now,
            assignment,
            self._snapshot(assignment.part),
            version=self.step,
            step=self.step,
            feasible=feasible,
            counts=counts,
            extras=extras,
            extra_buffers=[auxiliary.extra_buffers for auxiliary in self._auxiliaries],
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task, assignment = flight.task, flight.assignment
        if self._held is not None:
            assignment = _reported(assignment, self._held(task.client))
        weight = self._weight(task.client)
        delta = assignment.trained(update.params - task.params)
        for auxiliary in self._auxiliaries:
            auxiliary.receive(task.client, assignment, update, delta, weight, task.lr)
        self._missing -= 1
        self._scales += task.lr * update.steps
        self._square += float(np.einsum("i,i->", delta, delta, dtype=np.float64))
        self._aggregator.add(task.client, assignment.where, delta, weight, task.lr)
        self._lr = task.lr
        self.task_table.settle(
            update,
            now,
            version=self.step + 1,
            staleness=0,
            global_staleness=0,
            mix=self._optimizer.server_lr * weight / self._weight_sum,
        )
        if self._missing:
            return ()
        self._close_round(now)
        return self._begin_round()

    def state(self) -> State:
        return {
            "params": self.params,
            "step": self.step,
            "missing": self._missing,
            "scales": self._scales,
            "square": self._square,
            "lr": self._lr,
            "last_trained": self._last_trained,
            "aggregate": self._aggregator.state(),
            "stepper": self._optimizer.state(),
            "companions": [auxiliary.state() for auxiliary in self._auxiliaries],
            "ledger": self.task_table.state(),
        }

    def restore(self, state: State) -> None:
        self.params[:], self.step = state["params"], state["step"]
        self._begin_round()
        self._missing, self._scales = state["missing"], state["scales"]
        self._square, self._lr = state["square"], state["lr"]
        self._last_trained[:] = state["last_trained"]
        self._aggregator.restore(state["aggregate"])
        self._optimizer.restore(state["stepper"])
        for auxiliary, ours in zip(self._auxiliaries, state["companions"], strict=True):
            auxiliary.restore(ours)
        self.task_table.restore(state["ledger"])

    def _begin_round(self) -> Iterable[int]:
        self._cohort = self._participation.cohort(len(self.task_table.sizes), self.step, self._seed)
        self._position = {client: position for position, client in enumerate(self._cohort)}
        self._missing = len(self._cohort)
        self._weight_sum = sum(self._weight(client) for client in self._cohort)
        self._scales = self._square = self._lr = 0.0
        self._snapshots = {}
        return self._cohort

    def _close_round(self, now: float) -> None:
        delta, coverage, moved = self._aggregator.finish(self._lr)
        self._optimizer.step(self.params, delta, moved)
        for auxiliary in self._auxiliaries:
            auxiliary.close(self.params, delta, moved, self._scales / len(self._cohort))
        covered = coverage > 0
        self._last_trained[covered] = self.step
        self._record(
            "round",
            now,
            round=self.step,
            clients=len(self._cohort),
            coverage_min=int(coverage.min()),
            coverage_max=int(coverage.max()),
            uncovered=int((~covered).sum()),
            coverage_min_trained=int(coverage.min(initial=len(self._cohort), where=covered)) if covered.any() else 0,
            longest_untrained=self.step - int(self._last_trained.min()),
            drift=(self._square / len(self._cohort)) ** 0.5,
        )
        self.step += 1

    def _audit(self, client: int) -> tuple[list[int], list[int]]:
        """What the choice was made from, where a scheduler makes it."""
        if isinstance(self._sampler, ScheduledSampler):
            return self._sampler.scheduler.feasible(client).tolist(), self._sampler.counts.tolist()
        return [], []

    def _snapshot(self, part: Submodel) -> SharedBuffer:
        """The part at the start of the round: one buffer for all clients that train it.

        The whole model is not copied: it stays as it is until all have trained.
        """
        key = None if part.index is None else part
        if key not in self._snapshots:
            whole = self.params[:]
            whole.flags.writeable = False
            self._snapshots[key] = SharedBuffer(whole if part.index is None else part.take(whole))
        return self._snapshots[key]

    def _weight(self, client: int) -> float:
        return float(self.task_table.sizes[client]) if self._by_samples else 1.0


def _reported(assignment: Assignment, held: Mask) -> Assignment:
    """The choice less the coordinates that the client may not report; `held` is over the full vector."""
    mask = assignment.part.take(held).astype(bool)
    return replace(assignment, mask=mask if assignment.mask is None else assignment.mask & mask)
