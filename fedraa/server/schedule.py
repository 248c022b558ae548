"""Who trains when: given work at once by a scheduler, or in rounds with a barrier. A schedule builds the server."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.aggregation.label_owners import LabelOwners
from fedraa.client.compression import COMPRESSOR
from fedraa.components.calls import calling
from fedraa.components.registry import Seam
from fedraa.components.state import saved
from fedraa.ledger.participation import PARTICIPATION, All, Participation
from fedraa.messages import State, Update, Vector
from fedraa.numbers import Count, Positive, UpToOne
from fedraa.rng import generator
from fedraa.server.async_rule import AsyncRule
from fedraa.server.async_server import AsyncServer
from fedraa.server.drawing import DrawingServer
from fedraa.server.round_server import RoundServer
from fedraa.server.round_state import AuxiliaryRun
from fedraa.server.round_update import RoundUpdate
from fedraa.server.server import Server
from fedraa.server.setup import ServerSetup
from fedraa.server.stores.local import LocalStore
from fedraa.submodels.assignment import Assignment, Mask, Submodel
from fedraa.submodels.policies.policy import RoundContext, SubmodelSampler
from schedulers import SCHEDULERS, Planner, Scheduler, Standing, once

SCHEDULER: Seam[Scheduler] = Seam("scheduler", ("choose", "plan", "state", "restore"), dict(SCHEDULERS))


class Schedule(ABC):
    """How tasks are given out: with rounds or `asynchronous`, by a policy or, if `scheduled`, by a scheduler.

    With an `average` over 0 the model that is evaluated and delivered is a mean, as AveragedServer has it.
    """

    asynchronous: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    scheduler: Any = None
    delay_bound: Positive | None = None
    average: UpToOne = 0.0
    download: Any = "none"

    @abstractmethod
    def server(self, update: Any, setup: ServerSetup) -> Server:
        """The server of a method with this schedule and that update."""


@dataclass(frozen=True)
class Asynchronous(Schedule):
    """Idle clients are given work at once, by a scheduler."""

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None
    updates: Count | None = None
    concurrency: Count | None = None
    average: UpToOne = 0.0

    asynchronous: ClassVar[bool] = True
    scheduled: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        sizes, at_a_time = setup.task_table.sizes, self.concurrency
        store = setup.store or LocalStore(setup.params, setup.submodels, update, sizes, setup.share, at_a_time)
        return AsyncServer(
            store,
            setup.submodels,
            SCHEDULER.own(self.scheduler),
            setup.task_table,
            bound=self.delay_bound,
            balance=update.balance,
            seed=setup.run.seed,
            learn=setup.learn,
            concurrency=self.concurrency,
        )


@dataclass(frozen=True)
class Drawn(Schedule):
    """Idle clients are given work at once: a submodel that a policy draws for the task."""

    updates: Count | None = None
    average: UpToOne = 0.0

    asynchronous: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        if update.balance:
            raise ValueError(f"balance: got {update.balance:g}, but what a policy draws has no planned costs; give 0")
        sampler = setup.policy.bind(setup.run)
        if type(sampler).close is not SubmodelSampler.close:
            raise ValueError(
                f"submodel: {type(setup.policy).__name__} chooses anew when a round is over, and here is none; take "
                "one that draws every task by itself"
            )
        return DrawingServer(setup.params, setup.run, sampler, update, setup.task_table, setup.share)


class Barrier(Schedule):
    """Rounds: all of a cohort train before the model moves."""

    @abstractmethod
    def sampler(self, setup: ServerSetup) -> SubmodelSampler:
        """What gives each client of a round its submodel."""

    def participants(self) -> Participation:
        return All()

    def server(self, update: RoundUpdate, setup: ServerSetup) -> Server:
        run = setup.run
        size, clients = run.traced.size, run.clients
        return RoundServer(
            setup.params,
            run,
            self.sampler(setup),
            BoundAggregator(update.averaging(), run),
            update.stepping().bind(size),
            update.auxiliary.bind(AuxiliaryRun(size, clients, setup.inputs, setup.fresh)),
            self.participants(),
            setup.task_table,
            setup.record,
            by_samples=update.weights == "samples",
            held=LabelOwners(run.traced, setup.labels_held) if update.owned_head else None,
            download=COMPRESSOR.make(self.download),
        )


@dataclass(frozen=True)
class Rounds(Barrier):
    """Rounds with a barrier: who takes part, and how the model is sent to them (C of RA-Fed)."""

    participation: Any = "all"
    rounds: Count | None = None
    average: UpToOne = 0.0
    download: Any = "none"

    def sampler(self, setup: ServerSetup) -> SubmodelSampler:
        return setup.policy.bind(setup.run)

    def participants(self) -> Participation:
        return PARTICIPATION.own(self.participation)


@dataclass(frozen=True)
class ScheduledRounds(Barrier):
    """Rounds with a barrier, fragments given out by a scheduler.

    While a round is assigned each task counts as an update of its fragment; with `per_round` a fragment has one update
    more after a round in which it was trained, however many clients trained it: that is what became of the model.
    """

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None
    rounds: Count | None = None
    average: UpToOne = 0.0
    per_round: bool = True

    scheduled: ClassVar[bool] = True

    def sampler(self, setup: ServerSetup) -> SubmodelSampler:
        planner = Planner(SCHEDULER.own(self.scheduler))
        costs = setup.task_table.costs.table([submodel.widths for submodel in setup.submodels])
        planner.plan(costs, self.delay_bound)
        return ScheduledSampler(setup.submodels, planner, setup.run.seed, per_round=self.per_round)


class ScheduledSampler(SubmodelSampler):
    """Sync Fed-RAA: the scheduler's fragment, with counts that rise as the round is assigned.

    Every task of a round returns before the next, or is dropped: what has risen by then was trained.
    """

    def __init__(self, submodels: list[Submodel], planner: Planner, seed: int, *, per_round: bool) -> None:
        self._assignments = [Assignment(j, submodel) for j, submodel in enumerate(submodels)]
        self._planner, self._seed = planner, seed
        self._standing = Standing.start(len(submodels))
        self._before, self._per_round = self._standing.counts.copy(), per_round

    def draw(self, context: RoundContext) -> Assignment:
        rng = generator(self._seed, "schedule", context.client, context.round)
        feasible = self._planner.feasible(context.client)
        with calling("scheduler", self._planner.scheduler):
            j = self._planner.choose(context.client, context.round, context.now, feasible, self._standing, rng)
        self._standing.counts[j] += 1
        self._standing.sent[j] += 1
        return self._assignments[j]

    def audit(self, client: int) -> tuple[list[int], list[int]]:
        return self._planner.feasible(client).tolist(), self._standing.counts.tolist()

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        self._standing.losses[assignment.label] = update.loss

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        if self._per_round:
            once(self._standing.counts, self._before)

    def drop(self, assignment: Assignment) -> None:
        self._standing.counts[assignment.label] -= 1
        self._standing.sent[assignment.label] -= 1

    def state(self) -> State:
        return {
            "counts": self._standing.counts,
            "before": self._before,
            "sent": self._standing.sent,
            "losses": self._standing.losses,
            "scheduler": saved(self._planner.scheduler),
        }

    def restore(self, state: State) -> None:
        self._standing.counts[:], self._standing.losses[:] = state["counts"], state["losses"]
        self._before[:] = state["before" if "before" in state else "counts"]  # which older checkpoints do not have
        self._standing.sent[:] = state["sent" if "sent" in state else "counts"]  # the same, in older checkpoints
        self._planner.scheduler.restore(state["scheduler"])
