"""Schedules: clients train asynchronously, or in rounds with a barrier. A schedule builds the server."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.aggregation.label_owners import LabelOwners
from fedraa.attacks.collusion import CollusionAggregator
from fedraa.client.compression import COMPRESSOR
from fedraa.client.lr_schedule import USUAL_SCHEDULES
from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.participation import PARTICIPATION, All, Participation, draw_cohort
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.messages import Vector
from fedraa.numbers import Count, Positive, UpToOne
from fedraa.server.async_rule import AsyncRule
from fedraa.server.async_server import AsyncServer
from fedraa.server.round_server import RoundComponents, RoundServer
from fedraa.server.round_state import RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.server.server import Server, ServerSetup
from fedraa.server.stores.local import LocalStore
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.submodels.policies.policy import RoundContext, SubmodelSampler
from schedulers import SCHEDULERS, Scheduler, SchedulerRunner

SCHEDULER: ComponentRegistry[Scheduler] = ComponentRegistry(
    "scheduler",
    ("choose", "plan", "state", "restore"),
    dict(SCHEDULERS),
    # A user may mean a schedule of the learning rate, which other libraries call a scheduler.
    hints={name: f"did you mean lr_schedule {value}?" for name, value in USUAL_SCHEDULES.items()},
)


class Schedule(ABC):
    """The order of tasks: in rounds, or one by one if `asynchronous`.

    A policy chooses the submodel of each task, or a scheduler if `scheduled`.

    With a `polyak_fraction` over 0, the evaluated and delivered model is a mean over the last models
    (`PolyakAveraging`).
    """

    asynchronous: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    scheduler: Any = None
    delay_bound: Positive | None = None
    polyak_fraction: UpToOne = 0.0
    download_compressor: Any = "none"

    @abstractmethod
    def server(self, update: Any, setup: ServerSetup) -> Server:
        """Return the server of a method with this schedule and the given update."""


@dataclass(frozen=True)
class AsyncSchedule(Schedule):
    """Idle clients receive fragments at once, at most `concurrency` clients at a time.

    A scheduler chooses the fragment.
    """

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None
    updates: Count | None = None
    concurrency: Count | None = None
    polyak_fraction: UpToOne = 0.0

    asynchronous: ClassVar[bool] = True
    scheduled: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        sizes = setup.task_table.sizes
        store = setup.store or LocalStore(
            setup.params, setup.submodels, update, sizes, setup.share, self.concurrency, setup.shared
        )
        ledger = AsyncLedger(
            clients=setup.run.clients,
            seed=setup.run.seed,
            bad_clients=setup.bad_clients,
            fragments=len(setup.submodels),
            scheduler=SchedulerRunner(SCHEDULER.own(self.scheduler)),
            concurrency=self.concurrency,
        )
        server = AsyncServer(
            store,
            ledger,
            setup.task_table,
            fragments=setup.submodels,
            bound=self.delay_bound,
            balance=update.participation_correction,
            learn=setup.learn,
        )
        server.collusion = setup.make_collusion(_count_voters(update, setup.run.clients))
        return server


@dataclass(frozen=True)
class AsyncSampled(Schedule):
    """Idle clients receive submodels at once. A policy draws a submodel for each task.

    Staleness counts versions of the whole model. For the policy, each version is a round, and all clients are its
    cohort, so tasks of the same version share what a policy draws once per round.
    """

    updates: Count | None = None
    polyak_fraction: UpToOne = 0.0

    asynchronous: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        if update.participation_correction:
            problem = "tasks with sampled submodels have no planned costs"
            got = update.participation_correction
            raise InputError("update.participation_correction", problem, got=got, hint="give 0")
        run = setup.run
        sampler = setup.policy.bind(run)
        if type(sampler).close is not SubmodelSampler.close:
            raise InputError(
                "submodel",
                f"{type(setup.policy).__name__} chooses again at the end of a round, and this schedule has no rounds",
                hint="take a policy that draws every task independently",
            )

        def sample_assignment(client: int, step: int, now: float, params: Vector) -> Assignment:
            return sampler.draw(RoundContext(client, step, client, run.clients, now, params, run))

        store = LocalStore(setup.params, (), update, setup.task_table.sizes, setup.share, shared=setup.shared)
        ledger = AsyncLedger(clients=run.clients, seed=run.seed, bad_clients=setup.bad_clients)
        server = AsyncServer(store, ledger, setup.task_table, sample=sample_assignment)
        server.collusion = setup.make_collusion(_count_voters(update, run.clients))
        return server


def _count_voters(update: AsyncRule, clients: int) -> int:
    """Return the number of updates per server update of a buffered rule, and the number of clients for others."""
    if update.per_step > 1:
        return update.per_step
    return clients


class Barrier(Schedule):
    """Rounds: all clients of a cohort train before the model moves."""

    @abstractmethod
    def submodels(self, setup: ServerSetup) -> SubmodelSampler | Sequence[Submodel]:
        """Return the sampler of the policy, or the fragments of the scheduler."""

    def planner(self, setup: ServerSetup) -> SchedulerRunner | None:
        """Return the scheduler with its costs, or None without a scheduler."""
        return None

    def choose_participation(self) -> Participation:
        return All()

    def server(self, update: Mean, setup: ServerSetup) -> Server:
        run = setup.run
        size = run.traced.size
        clients = run.clients
        participation = self.choose_participation()
        submodels = self.submodels(setup)
        alone = submodels.alone if isinstance(submodels, SubmodelSampler) else 0

        def choose_cohort(round: int, quarantined: Collection[int]) -> Sequence[int]:
            return draw_cohort(participation, clients, round, run.seed, quarantined, alone)

        ledger = RoundLedger(
            clients=clients,
            seed=run.seed,
            bad_clients=setup.bad_clients,
            draw_cohort=choose_cohort,
            samples=setup.task_table.sizes if update.weights == "samples" else None,
            fragments=len(setup.submodels),
            scheduler=self.planner(setup),
        )
        collusion = setup.make_collusion(clients)
        if collusion is None:
            aggregator = BoundAggregator(update.resolve_aggregator(), run)
        else:
            aggregator = CollusionAggregator(update.resolve_aggregator(), run, collusion)
        components = RoundComponents(
            submodels=submodels,
            aggregator=aggregator,
            optimizer=update.resolve_optimizer().bind(size),
            auxiliary=update.auxiliary.bind(RoundStateContext(size, clients, setup.grad_mix)),
            reportable=LabelOwners(run.traced, setup.labels_held) if update.owned_head else None,
            download=COMPRESSOR.resolve(self.download_compressor),
            shared=setup.shared,
        )
        return RoundServer(setup.params, run, ledger, components, setup.task_table, setup.record)


@dataclass(frozen=True)
class Rounds(Barrier):
    """Rounds with a barrier. `download_compressor` compresses the model for the clients (the operator C of RA-Fed).

    Attributes:
        participation: The clients of a round.
        rounds: Number of rounds, None to stop by another limit.
        polyak_fraction: Share of the last rounds that the evaluated mean model covers; 0 evaluates the current model.
        download_compressor: Compression of the model that the server sends.
    """

    participation: Any = "all"
    rounds: Count | None = None
    polyak_fraction: UpToOne = 0.0
    download_compressor: Any = "none"

    def submodels(self, setup: ServerSetup) -> SubmodelSampler:
        return setup.policy.bind(setup.run)

    def choose_participation(self) -> Participation:
        return PARTICIPATION.own(self.participation)


@dataclass(frozen=True)
class ScheduledRounds(Barrier):
    """Rounds with a barrier, in which a scheduler chooses the fragments (Sync Fed-RAA).

    While the tasks of a round are assigned, each task counts as an update of its fragment. After the round, each
    fragment that some client trained has one more update.
    """

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None
    rounds: Count | None = None
    polyak_fraction: UpToOne = 0.0

    scheduled: ClassVar[bool] = True

    def submodels(self, setup: ServerSetup) -> Sequence[Submodel]:
        return setup.submodels

    def planner(self, setup: ServerSetup) -> SchedulerRunner:
        planner = SchedulerRunner(SCHEDULER.own(self.scheduler))
        costs = setup.task_table.costs.table([submodel.widths for submodel in setup.submodels])
        planner.plan(costs, self.delay_bound)
        return planner
