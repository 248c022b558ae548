"""Functions that make a run's server, cost model and worker from its RunSpec."""

from functools import partial

from fedraa.aggregation.registry import find_needed_client
from fedraa.devices.costs import CostModel, CostSettings
from fedraa.engine.run_spec import RunSpec, participation_of
from fedraa.engine.worker_spec import WorkerSpec
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.participation import expected_cohort
from fedraa.messages import SharedBuffer
from fedraa.server.async_rule import AsyncModel, AsyncRule
from fedraa.server.client_states import ClientStates
from fedraa.server.local_rates import LocalRates
from fedraa.server.mixing import LocalMean
from fedraa.server.polyak import PolyakAveraging
from fedraa.server.round_state import RoundState
from fedraa.server.schedule import SCHEDULER
from fedraa.server.server import Server, ServerSetup
from fedraa.server.stores.local import MakeSharedBuffer, Store
from fedraa.server.tasks import Record, TaskTable
from fedraa.submodels.flat import frozen_parameters
from fedraa.submodels.policies.policy import RunContext
from fedraa.submodels.policies.slices import LayerCut
from schedulers import SchedulerRunner


def make_server(
    spec: RunSpec, record: Record, store: Store | None = None, share: MakeSharedBuffer = SharedBuffer
) -> Server:
    """Return the method's server in its initial state.

    Args:
        spec: The run.
        record: Writes an event to the log.
        store: Keeps the parameters of an asynchronous server. None: the server keeps them.
        share: Converts parameters to a buffer that several tasks share. Unused with a `store`.
    """
    experiment = spec.experiment
    method = spec.method
    params = spec.params.copy() if store is None else spec.params
    task_table = _make_task_table(spec, record)
    setup = ServerSetup(
        params=params,
        submodels=spec.submodels,
        run=RunContext(
            spec.traced,
            experiment.client_count,
            experiment.seed,
            params,
            spec.example,
            shared=spec.shared,
            durations=partial(task_table.costs.expected_durations, ()),
        ),
        policy=method.submodel,
        task_table=task_table,
        record=record,
        bad_clients=BadClients(
            experiment.client_retries,
            stop=experiment.on_bad_client == "stop",
            needed=find_needed_client(method.aggregator),
            max_tasks=experiment.max_participations,
        ),
        labels_held=spec.labels_held,
        grad_mix=method.local.grad_mix,
        learn=spec.wall,
        store=store,
        share=share,
        timing=spec.timing,
        attack=spec.attack,
        privacy=None if spec.privacy is None or spec.privacy.local else spec.privacy,
        shared=spec.shared,
        rounds=spec.limits.steps,
        full_weight=spec.full_weight,
        label_overlap=spec.label_overlap,
        hides_losses=spec.privacy is not None,
    )
    server = method.schedule.server(method.update, setup)
    average = method.schedule.polyak_fraction
    if not average:
        return server
    return PolyakAveraging(server, average, LocalMean(server) if store is None else store.mean())


def bind_rule(spec: RunSpec) -> AsyncRule:
    """Return the asynchronous rule of a run, bound to its model. The rule computes weights and has no other use."""
    assert isinstance(spec.method.update, AsyncRule)
    model = AsyncModel(
        spec.params,
        spec.experiment.client_count,
        max(1, len(spec.submodels)),
        spec.at_a_time,
        tensors=spec.traced.shapes,
        label_overlap=spec.label_overlap,
    )
    return spec.method.update.bind(model)


def _make_task_table(spec: RunSpec, record: Record) -> TaskTable:
    local = spec.method.local

    def base_rate(widths: tuple[int, ...]) -> float:
        if spec.scales_rate:
            return local.lr * spec.traced.mean_width_share(widths)
        return local.lr

    return TaskTable(
        spec.data.sizes.tolist(),
        make_cost_model(spec),
        record,
        LocalRates(local.lr_schedule, base_rate, _count_at_work(spec), spec.experiment.client_count),
        spec.timing,
        client_states=ClientStates(spec.kept_buffers, spec.params, spec.experiment.client_count),
        shared=spec.shared,
    )


def _count_at_work(spec: RunSpec) -> int:
    """Return the number of clients that train at the same time; with rounds, the expected size of a cohort."""
    participation = participation_of(spec.method.schedule)
    if participation is None:
        return spec.at_a_time
    clients = spec.experiment.client_count
    return max(1, round(expected_cohort(participation, clients) or clients))


def make_cost_model(spec: RunSpec) -> CostModel:
    """Return the costs of the run's tasks."""
    auxiliary = spec.method.auxiliary or RoundState()
    settings = CostSettings(
        unit=spec.experiment.time_scale if spec.wall else 1.0,
        stem=spec.stem,
        frozen=bool(frozen_parameters(spec.traced.module)),
        server=getattr(spec.method.submodel, "server_compute", LayerCut.server_compute),
        download=spec.method.schedule.download_compressor,
        label_overlap=spec.label_overlap,
        extra_buffers=auxiliary.count_extra_buffers(),
    )
    full = spec.traced.widths(spec.traced.full())
    return CostModel(spec.fleet, spec.data.sizes, spec.method.local, spec.measure, full, settings)


def make_planner(spec: RunSpec) -> SchedulerRunner:
    """Return the run's scheduler with the costs of its fragments, before the first task."""
    schedule = spec.method.schedule
    costs = make_cost_model(spec).table([submodel.widths for submodel in spec.submodels])
    return SchedulerRunner.planned(SCHEDULER.copy_for_run(schedule.scheduler), costs, schedule.delay_bound)


def make_worker_spec(spec: RunSpec) -> WorkerSpec:
    """Return the description from which a worker is made."""
    experiment = spec.experiment
    method = spec.method
    return WorkerSpec(
        traced=spec.traced,
        local=method.local,
        seed=experiment.seed,
        fragment_scale=method.scales_activations,
        bf16=experiment.bf16,
        stack=experiment.vmap_batch,
        metrics=spec.metrics,
        objective=spec.objective,
        transforms=spec.transforms,
        source=spec.data.source,
        scale_inner=method.submodel.scales,
        label_shares=spec.label_shares,
        state=spec.state,
        attack=spec.attack,
        privacy=spec.privacy,
        kept_models=spec.kept_models,
    )
