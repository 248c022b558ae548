"""From an experiment to the objects of its run: everything that can be wrong shows here, before the start."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedraa.client import WorkerSpec
from fedraa.client.evaluator import STATISTICS_SAMPLES
from fedraa.client.flat_module import BatchedModule
from fedraa.client.lr_schedule import lr_schedule
from fedraa.client.split import Stem, measure_stem
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset, Federated, federate, load_dataset, partition
from fedraa.devices.availability import Timing, read_availability
from fedraa.devices.costs import CostModel
from fedraa.devices.fleet import Fleet, make_fleet
from fedraa.engine import resources
from fedraa.engine.loop import Limits
from fedraa.messages import Vector
from fedraa.methods.catalog import Asynchronous, Mean, Method, Rounds, ScheduledRounds, SyncMix, resolve
from fedraa.models import build_model
from fedraa.server.aggregation.label_owners import LabelOwners, labels_held
from fedraa.server.async_rules import Buffer, StalenessMix
from fedraa.server.asynchronous import AsyncServer
from fedraa.server.auxiliary.pruning import AdaptivePruning
from fedraa.server.base import Server
from fedraa.server.optimizers import Sgd
from fedraa.server.participation import Participation
from fedraa.server.rounds import RoundServer, ScheduledSampler
from fedraa.server.storage.store import LocalStore, Share, Store, stay
from fedraa.server.task_table import Record, TaskTable
from fedraa.submodels import IndexSet, Traced, drop_weights, flatten
from fedraa.submodels.cost import Cost, measure
from fedraa.submodels.indices import fragments, owners
from fedraa.submodels.policies.policies import Fragments, RunContext, Submodel, SubmodelSampler
from fedraa.submodels.tracing.trace import trace
from schedulers import SCHEDULERS, TOLERANCE, delay_bound

DEFAULT_ROUNDS = 20


@dataclass(frozen=True, eq=False)
class RunSpec:
    """All that a run needs, plain and picklable: it is built where the user is and run where the server is."""

    experiment: Experiment
    method: Method
    data: Federated
    traced: Traced
    fleet: Fleet
    params: Vector
    index_sets: tuple[IndexSet, ...]
    example: torch.Tensor
    labels_held: npt.NDArray[np.bool_]
    timing: Timing
    given: tuple[str, ...] = ()
    """Which of model and dataset the user gave as objects, in place of the named ones."""

    @cached_property
    def parts(self) -> list[Submodel]:
        """The parts of the model that a scheduler gives out; one part is the full model."""
        return [Submodel.of(self.traced, kept) for kept in self.index_sets]

    @property
    def wall(self) -> bool:
        return self.experiment.clock == "wall"

    @property
    def limits(self) -> Limits:
        experiment = self.experiment
        steps = experiment.updates or experiment.rounds
        if steps is None and experiment.time is None:
            steps = DEFAULT_ROUNDS * self._steps_per_round
        return Limits(steps, experiment.time, experiment.target_accuracy)

    @property
    def eval_every(self) -> int:
        return self.experiment.eval_every or self._steps_per_round

    @property
    def _steps_per_round(self) -> int:
        """Server steps in which every client is heard about once."""
        if not self.method.asynchronous:
            return 1
        per_step = self.method.update.size if isinstance(self.method.update, Buffer) else 1
        return max(1, self.experiment.clients // per_step)

    @cached_property
    def stem(self) -> Stem | None:
        """The client's part of a model in split learning."""
        split = self.method.local.split
        return measure_stem(self.traced.module, split, self.example) if split else None

    def costs(self) -> CostModel:
        return CostModel(
            self.fleet,
            self.data.sizes,
            self.method.local,
            self.measure,
            self.traced.widths(self.traced.full()),
            unit=self.experiment.time_scale if self.wall else 1.0,
            stem=self.stem,
        )

    def measure(self, widths: tuple[int, ...]) -> Cost:
        """The cost of a submodel shape, measured once."""
        return measure(self.traced, widths, self.example)

    @property
    def shapes(self) -> dict[tuple[int, ...], Cost]:
        """The costs of the submodel shapes that are known before the start."""
        widths = {part.widths for part in self.parts} | {self.traced.widths(self.traced.full())}
        return {shape: self.measure(shape) for shape in sorted(widths)}

    def server(self, record: Record, store: Store | None = None, share: Share = stay) -> Server:
        """The method's server, at its start; `store` keeps an asynchronous one's parameters.

        The default keeps them itself, and puts what it sends where `share` says.
        """
        experiment, solver = self.experiment, self.method.local
        factor = lr_schedule(solver.lr_schedule)
        task_table = TaskTable(self.data.sizes.tolist(), self.costs(), record, lambda step: solver.lr * factor(step))
        schedule, update = self.method.schedule, self.method.update
        if isinstance(update, StalenessMix | Buffer):
            assert isinstance(schedule, Asynchronous)
            return AsyncServer(
                store or LocalStore(self.params.copy(), self.parts, update.bind(self.traced.size), share),
                self.parts,
                SCHEDULERS[schedule.scheduler],
                task_table,
                bound=schedule.delay_bound,
                seed=experiment.seed,
                learn=self.wall,
            )
        return self._round_server(task_table, record)

    def _round_server(self, task_table: TaskTable, record: Record) -> RoundServer:
        update, schedule, policy = self.method.update, self.method.schedule, self.method.submodel
        size, clients, seed = self.traced.size, self.experiment.clients, self.experiment.seed
        mean = update if isinstance(update, Mean) else Mean()
        optimizer = Sgd(update.mixing).bind(size) if isinstance(update, SyncMix) else mean.optimizer.bind(size)
        auxiliaries = [mean.carry.bind(size, clients, inputs=self.example[0].numel(), fresh=self.method.local.fresh)]
        run, params = RunContext(self.traced, clients, seed), self.params.copy()
        sampler: SubmodelSampler
        if isinstance(schedule, ScheduledRounds):
            table = task_table.costs.table([part.widths for part in self.parts])
            bound = delay_bound(table) if schedule.delay_bound is None else schedule.delay_bound
            sampler = ScheduledSampler(self.parts, SCHEDULERS[schedule.scheduler](table, bound), seed)
            auxiliaries.append(sampler)
        elif isinstance(policy, AdaptivePruning):
            sampler = policy.start(run, params)
            auxiliaries.append(sampler)
        else:
            assert not isinstance(policy, Fragments)
            sampler = policy.bind(run)
        who = schedule.participation if isinstance(schedule, Rounds) else "all"
        return RoundServer(
            params,
            sampler,
            mean.aggregator.bind(size, clients),
            optimizer,
            auxiliaries,
            Participation.parse(who, clients),
            task_table,
            record,
            weights=mean.weights,
            seed=seed,
            held=LabelOwners(self.traced, self.labels_held) if mean.owned_head else None,
        )

    @property
    def worker_spec(self) -> WorkerSpec:
        experiment = self.experiment
        return WorkerSpec(
            self.traced,
            self.method.local,
            experiment.seed,
            experiment.fragment_scale,
            experiment.bf16,
            experiment.stack,
        )

    def without_training_rows(self) -> "RunSpec":
        """Itself less the training data but for what an evaluation may need; shard sizes stay known."""
        dataset = self.data.dataset
        few = replace(
            dataset,
            x_train=dataset.x_train[:STATISTICS_SAMPLES],
            y_train=dataset.y_train[:STATISTICS_SAMPLES],
        )
        return replace(self, data=replace(self.data, dataset=few))


def build(experiment: Experiment, model: nn.Module | None = None, dataset: Dataset | None = None) -> RunSpec:
    """Builds a run's parts; ValueError says in one sentence what is wrong with the experiment.

    `model` and `dataset` are the user's own, in place of the named ones.
    """
    method = resolve(experiment)
    given = tuple(name for name, own in (("model", model), ("dataset", dataset)) if own is not None)
    fleet = make_fleet(experiment.capabilities, experiment.clients, units=experiment.units, seed=experiment.seed)
    timing = _timing(experiment)
    if dataset is not None and experiment.data_on_nodes:
        raise ValueError("data_on_nodes: nodes cannot read a dataset that is given as an object; leave it out")
    if dataset is None:
        dataset = load_dataset(experiment.dataset, experiment.data_dir)
    data = deal(experiment, dataset)
    # a real minibatch, for memory is measured on it; two samples at least, as the tracer wants
    example = torch.from_numpy(dataset.x_train[: max(2, experiment.batch_size)])
    if model is None:
        model = build_model(
            experiment.model,
            example,
            dataset.classes,
            hidden=experiment.hidden,
            dropout=experiment.dropout,
            seed=experiment.seed,
        )
    traced = trace(model, example[:2])
    sets = _index_sets(method, traced)
    params = flatten(traced.module)
    params[owners(traced, sets) == 0] = 0.0
    drop_weights(traced.module)
    spec = RunSpec(
        experiment,
        method,
        data,
        traced,
        fleet,
        params,
        sets,
        example,
        labels_held(data, dataset.classes),
        timing,
        given,
    )
    _check_feasible(spec)
    if experiment.stack > 1:
        _check_stack(spec)
    resources.check(spec)
    server = spec.server(_nowhere)
    server.assign(next(iter(server.begin())), 0.0)  # what they refuse is refused here
    return spec


def deal(experiment: Experiment, dataset: Dataset) -> Federated:
    """The dataset as the experiment's clients hold it."""
    shards = partition(
        dataset.y_train,
        dataset.y_test,
        experiment.clients,
        experiment.partition,
        dirichlet=experiment.dirichlet,
        labels_per_client=experiment.labels_per_client,
        seed=experiment.seed,
    )
    return federate(dataset, shards)


def _nowhere(kind: str, t: float, /, **fields: object) -> None:
    """Records nothing."""


def _timing(experiment: Experiment) -> Timing:
    path, period = experiment.availability, experiment.availability_period
    if path is None and period is not None:
        raise ValueError(f"availability_period: {period:g} needs the spans that it repeats; give --availability, too")
    there = None if path is None else read_availability(path, experiment.clients, period)
    return Timing(experiment.seed, experiment.jitter, there)


def _index_sets(method: Method, traced: Traced) -> tuple[IndexSet, ...]:
    if not isinstance(method.submodel, Fragments):
        return (traced.full(),)
    if not traced.groups:
        reasons = "; ".join(traced.uncut.values()) or "it has no hidden units"
        raise ValueError(f"model: nothing of {type(traced.module).__name__} can be cut into fragments: {reasons}")
    return fragments(traced, method.submodel.ratios)


def _check_feasible(spec: RunSpec) -> None:
    """Refuses a start in which some client could never be given work."""
    schedule = spec.method.schedule
    table = spec.costs().table([part.widths for part in spec.parts])
    cheapest = table.argmin(axis=1)
    costs = table.min(axis=1)
    worst = int(costs.argmax())
    where = f"client {worst} with its cheapest fragment {cheapest[worst]}"
    if isinstance(schedule, Rounds):
        return
    if not np.isfinite(costs[worst]):
        raise ValueError(f"capabilities: {where} lacks the memory to train it; give it more or cut smaller fragments")
    bound = schedule.delay_bound
    if schedule.scheduler == "gre-raa" and bound is not None and costs[worst] > bound * (1 + TOLERANCE):
        raise ValueError(
            f"delay_bound: {bound:g} leaves {where} nothing to train, which costs {costs[worst]:.4g}; "
            f"give at least {costs[worst]:.4g}, or leave it out for K* = {delay_bound(table):.4g}"
        )


def _check_stack(spec: RunSpec) -> None:
    """ValueError for what cannot be trained in stacks."""
    experiment, solver = spec.experiment, spec.method.local
    for on, what in (
        (solver.full_gradient, "takes the gradient of a whole shard"),
        (solver.adversary, "has inputs that an adversary of the client's own bends"),
        (solver.split, "is split in two"),
    ):
        if on:
            raise ValueError(f"stack: what {experiment.method} trains {what}; it cannot be stacked, set stack to 1")
    widths = spec.traced.widths(spec.traced.full())
    model = BatchedModule(spec.traced.skeleton(widths), 1, torch.device("cpu"))
    model.load(spec.params[None])
    batch = spec.example[:2]
    try:
        alone, other = (model.logits(rows[None])[0, 0] for rows in (batch, torch.stack([batch[0], batch[0]])))
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"stack: torch.func.vmap cannot do with this model ({why}); set stack to 1") from None
    if not torch.allclose(alone, other, atol=1e-5):
        raise ValueError(
            "stack: what this model makes of a sample depends on the others of its minibatch, as with batch "
            "normalisation; it cannot be stacked, set stack to 1"
        )
