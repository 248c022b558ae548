"""Schedules: clients train asynchronously, or in rounds. A schedule builds the server."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.aggregation.coverage_mean import FilledMean
from fedraa.aggregation.label_owners import LabelOwners
from fedraa.attacks.collusion import CollusionAggregator
from fedraa.client.compression import COMPRESSOR
from fedraa.client.lr_schedule import USUAL_SCHEDULES
from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.participation import PARTICIPATION, expected_cohort
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.messages import Vector
from fedraa.numbers import AtLeastOne, Count, Positive, UpToOne
from fedraa.privacy.private_mean import PrivateMean
from fedraa.server.async_rule import AsyncRule
from fedraa.server.async_server import AsyncServer
from fedraa.server.round_server import RoundComponents, RoundServer
from fedraa.server.round_state import RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.server.selection import make_async_selector, make_deadline, make_round_selector, make_routing
from fedraa.server.server import Server, ServerSetup
from fedraa.server.stores.local import LocalStore
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.submodels.policies.policy import RoundContext, SubmodelSampler
from schedulers import SCHEDULERS, Scheduler, SchedulerRunner

SCHEDULER: ComponentRegistry[Scheduler] = ComponentRegistry(
    "scheduler",
    ("choose", "plan", "state", "restore"),
    dict(SCHEDULERS),
    # In other libraries, a scheduler is a learning-rate schedule. In fedraa, the option `lr_schedule` sets it.
    hints={name: f"did you mean lr_schedule {value}?" for name, value in USUAL_SCHEDULES.items()},
    base="Scheduler",
)


class Schedule(ABC):
    """The order of tasks: one by one if `asynchronous` is True, otherwise in rounds.

    If `scheduled` is True, a scheduler chooses the submodel of each task. Otherwise a submodel policy chooses it. With
    a `polyak_fraction` over 0, the evaluated model is a mean over the last models (`PolyakAveraging`).
    """

    asynchronous: ClassVar[bool] = False
    scheduled: ClassVar[bool] = False
    scheduler: Any = None
    delay_bound: Positive | None = None
    polyak_fraction: UpToOne = 0.0
    download_compressor: Any = "none"

    @abstractmethod
    def server(self, update: Any, setup: ServerSetup) -> Server:
        """Return the server of a method with this schedule.

        Args:
            update: The update rule of an asynchronous server, or the Mean of a synchronous server.
            setup: The other inputs.
        """


@dataclass(frozen=True)
class AsyncSchedule(Schedule):
    """An asynchronous schedule: an idle client receives a fragment at once. A scheduler chooses the fragment.

    Attributes:
        scheduler: Chooses the fragments.
        delay_bound: Largest duration of a task; None for the bound that follows from the costs.
        updates: Number of server updates; None to stop by another limit.
        concurrency: Number of clients that train at the same time; None for all.
        polyak_fraction: With 0.1, the evaluated model is the mean over about the last 10 % of all updates. With 0, it
            is the current model.
        next_client: Chooses the next client whenever one has finished, if `concurrency` leaves a choice.
        staleness_clock: `fragment` if the weight of an update depends on the number of newer updates of its fragment,
            `server` for the newer updates of all fragments. With a single fragment both are equal.
    """

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None
    updates: Count | None = None
    concurrency: Count | None = None
    polyak_fraction: UpToOne = 0.0
    next_client: Any = "uniform"
    staleness_clock: Literal["fragment", "server"] = "fragment"

    asynchronous: ClassVar[bool] = True
    scheduled: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        scheduler = SchedulerRunner(SCHEDULER.copy_for_run(self.scheduler))
        ledger = _make_ledger(self, setup, scheduler, self.staleness_clock)
        store = setup.store or _make_store(self, setup, update, ledger)
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
    """An asynchronous schedule: an idle client receives a submodel at once. A policy draws the submodel.

    Staleness counts versions of the whole model. A policy that draws once per round in a synchronous method draws once
    per version here.

    Attributes:
        updates: Number of server updates; None to stop by another limit.
        concurrency: Number of clients that train at the same time; None for all.
        polyak_fraction: With 0.1, the evaluated model is the mean over about the last 10 % of all updates. With 0, it
            is the current model.
        next_client: Chooses the next client whenever one has finished, if `concurrency` leaves a choice.
    """

    updates: Count | None = None
    concurrency: Count | None = None
    polyak_fraction: UpToOne = 0.0
    next_client: Any = "uniform"

    asynchronous: ClassVar[bool] = True

    def server(self, update: AsyncRule, setup: ServerSetup) -> Server:
        if update.participation_correction:
            problem = "it needs costs of submodels, which are unknown before they are sampled"
            got = update.participation_correction
            raise InputError("update.participation_correction", problem, got=got, hint="give 0")
        run = setup.run
        sampler = setup.policy.bind(run)
        if type(sampler).close is not SubmodelSampler.close or _reads_updates(sampler):
            problem = f"{type(setup.policy).__name__} uses the updates of rounds, but this schedule has no rounds"
            raise InputError("submodel", problem, hint="give a policy that needs no rounds")

        def sample_assignment(client: int, step: int, now: float, params: Vector) -> Assignment:
            context = RoundContext(
                client=client, round=step, position=client, cohort=run.clients, now=now, params=params, run=run
            )
            return sampler.draw(context)

        ledger = _make_ledger(self, setup)
        store = _make_store(self, setup, update, ledger)
        server = AsyncServer(store, ledger, setup.task_table, sample=sample_assignment)
        server.collusion = setup.make_collusion(_count_voters(update, run.clients))
        return server


def _reads_updates(sampler: SubmodelSampler) -> bool:
    """Return True if the sampler chooses submodels by the updates of clients."""
    return type(sampler).receive is not SubmodelSampler.receive


def _make_ledger(
    schedule: AsyncSchedule | AsyncSampled,
    setup: ServerSetup,
    scheduler: SchedulerRunner | None = None,
    staleness_clock: str = "fragment",
) -> AsyncLedger:
    choice: dict[str, Any] = {
        "clients": setup.run.clients,
        "seed": setup.run.seed,
        "concurrency": schedule.concurrency,
    }
    return AsyncLedger(
        bad_clients=setup.bad_clients,
        fragments=1 if scheduler is None else len(setup.submodels),
        scheduler=scheduler,
        selector=make_async_selector(schedule.next_client, setup.client_facts, **choice),
        routing=make_routing(schedule.next_client, setup.client_facts, **choice),
        staleness_clock=staleness_clock,
        **choice,
    )


def _make_store(
    schedule: AsyncSchedule | AsyncSampled, setup: ServerSetup, update: AsyncRule, ledger: AsyncLedger
) -> LocalStore:
    routing = ledger.routing
    return LocalStore(
        setup.params,
        setup.submodels if schedule.scheduled else (),
        update,
        setup.task_table.sizes,
        share=setup.share,
        at_a_time=schedule.concurrency,
        shared=setup.shared,
        noisy_sum=setup.make_noisy_sum(update.per_step, whole=False),
        tensors=setup.run.traced.shapes,
        probabilities=None if routing is None else routing.probabilities,
        full_weight=setup.full_weight,
        label_overlap=setup.label_overlap,
        hides_losses=setup.hides_losses,
    )


def _count_voters(update: AsyncRule, clients: int) -> int:
    """Return how many updates fill the rule's buffer, or the number of all clients if the rule has no buffer."""
    if update.per_step == 1:
        return clients
    # A robust aggregator combines deltas of different clients, so that the buffer never holds more of them.
    if getattr(update, "aggregator", None) is not None:
        return min(clients, update.per_step)
    return update.per_step


@dataclass(frozen=True)
class Barrier(Schedule):
    """A schedule in rounds: all clients of a cohort train before the server updates the model.

    Attributes:
        participation: Chooses the clients of a round.
        rounds: Number of rounds; None to stop by another limit.
        polyak_fraction: With 0.1, the evaluated model is the mean over about the last 10 % of all rounds. With 0, it
            is the current model.
        over_selection: Factor by which a round starts more clients than it needs. The first updates count; later ones
            are lost.
        deadline: Time from the start of a round to its end; None for no deadline.
        late: `drop` loses the work of a client that is late at the deadline. `partial` uses its local steps before the
            deadline.
    """

    participation: Any = "all"
    rounds: Count | None = None
    polyak_fraction: UpToOne = 0.0
    over_selection: AtLeastOne = 1.0
    deadline: Positive | None = None
    late: Literal["drop", "partial"] = "drop"

    @abstractmethod
    def submodels(self, setup: ServerSetup) -> SubmodelSampler | Sequence[Submodel]:
        """Return the sampler of the policy, or the fragments of the scheduler."""

    def planner(self, setup: ServerSetup) -> SchedulerRunner | None:
        """Return the scheduler with its costs, or None without a scheduler."""
        return None

    def server(self, update: Mean, setup: ServerSetup) -> Server:
        run = setup.run
        size = run.traced.size
        clients = run.clients
        submodels = self.submodels(setup)
        single_client_rounds = submodels.alone if isinstance(submodels, SubmodelSampler) else 0
        ledger = RoundLedger(
            clients=clients,
            seed=run.seed,
            bad_clients=setup.bad_clients,
            selector=make_round_selector(
                self.participation,
                setup.client_facts,
                clients=clients,
                seed=run.seed,
                over_selection=self.over_selection,
                single_client_rounds=single_client_rounds,
            ),
            samples=setup.task_table.sizes if update.weights == "samples" else None,
            fragments=len(setup.submodels),
            scheduler=self.planner(setup),
        )
        collusion = setup.make_collusion(clients)
        cohort = expected_cohort(PARTICIPATION.resolve(self.participation), clients)
        rule = update.resolve_aggregator()
        if setup.privacy is not None:
            if isinstance(submodels, SubmodelSampler) and _reads_updates(submodels):
                problem = f"{type(setup.policy).__name__} chooses submodels by updates that are not clipped"
                raise InputError("submodel", problem, hint="give another policy, or --privacy local")
            whole = setup.policy.whole and setup.shared is None
            noisy_sum = setup.make_noisy_sum(cohort or clients, whole=whole)
            assert noisy_sum is not None
            rule = PrivateMean(noisy_sum, fixed=whole or isinstance(rule, FilledMean))
        aggregator = BoundAggregator(rule, run)
        if collusion is not None:
            aggregator = CollusionAggregator(rule, run, collusion)
        components = RoundComponents(
            submodels=submodels,
            aggregator=aggregator,
            optimizer=update.resolve_optimizer().bind(size, run.traced.shapes),
            auxiliary=update.auxiliary.bind(
                RoundStateContext(
                    size=size,
                    clients=clients,
                    grad_mix=setup.grad_mix,
                    params=setup.params,
                    steps=setup.mean_steps,
                    rounds=setup.rounds,
                    cohort=cohort,
                )
            ),
            reportable=LabelOwners(run.traced, setup.labels_held) if update.owned_head else None,
            download=COMPRESSOR.resolve(self.download_compressor),
            shared=setup.shared,
            deadline=make_deadline(self.deadline, self.late, setup.timing, wall=setup.learn),
        )
        return RoundServer(setup.params, run, ledger, components, setup.task_table, setup.record)


@dataclass(frozen=True)
class Rounds(Barrier):
    """A schedule in rounds in which a policy draws the submodels.

    Attributes:
        download_compressor: Compresses the model that the server sends (the operator C of RA-Fed).
    """

    download_compressor: Any = "none"

    def submodels(self, setup: ServerSetup) -> SubmodelSampler:
        return setup.policy.bind(setup.run)


@dataclass(frozen=True)
class ScheduledRounds(Barrier):
    """A schedule in rounds in which a scheduler chooses the fragments (Sync Fed-RAA).

    As soon as a task is assigned, it counts as an update of its fragment, so that the next client gets another
    fragment. After the round, all updates of a fragment count as one.
    """

    scheduler: Any = "gre-raa"
    delay_bound: Positive | None = None

    scheduled: ClassVar[bool] = True

    def submodels(self, setup: ServerSetup) -> Sequence[Submodel]:
        return setup.submodels

    def planner(self, setup: ServerSetup) -> SchedulerRunner:
        costs = setup.task_table.costs.table([submodel.widths for submodel in setup.submodels])
        return SchedulerRunner.planned(SCHEDULER.copy_for_run(self.scheduler), costs, self.delay_bound)
