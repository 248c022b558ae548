"""From an experiment to the objects of its run: everything that can be wrong shows here, before the start."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import nn

from fedraa.costs import CostModel
from fedraa.data import Dataset, Federated, federate, load_dataset, partition
from fedraa.experiment import Experiment
from fedraa.fleet import Fleet, make_fleet
from fedraa.local import Recipe
from fedraa.local.evaluator import STATISTICS_SAMPLES
from fedraa.loop import Limits
from fedraa.messages import Vector
from fedraa.methods import Fragments, Mean, Method, StalenessMix, SyncMix, resolve
from fedraa.models import build_model
from fedraa.server import AsyncServer, Ledger, Part, Record, RoundServer, Server
from fedraa.server.rounds import ScheduledDraw
from fedraa.submodels import IndexSet, Traced, flatten, trace
from fedraa.submodels.cost import Cost, measure
from fedraa.submodels.indices import fragments, owners
from schedulers import SCHEDULERS, delay_bound

DEFAULT_ROUNDS = 20


@dataclass(frozen=True, eq=False)
class Assembly:
    """All that a run needs, plain and picklable: it is built where the user is and run where the server is."""

    experiment: Experiment
    method: Method
    data: Federated
    traced: Traced
    fleet: Fleet
    params: Vector
    index_sets: tuple[IndexSet, ...]
    shapes: dict[tuple[int, ...], Cost]

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of the model that tasks are cut from; one part is the full model."""
        if len(self.index_sets) == 1:
            return [Part(self.traced.widths(self.index_sets[0]), None)]
        return [Part(self.traced.widths(s), self.traced.flat_index(s)) for s in self.index_sets]

    @property
    def wall(self) -> bool:
        return self.experiment.clock == "wall"

    @property
    def limits(self) -> Limits:
        experiment = self.experiment
        steps = experiment.updates or experiment.rounds
        if steps is None and experiment.time is None:
            steps = DEFAULT_ROUNDS * (experiment.clients if self.method.asynchronous else 1)
        return Limits(steps, experiment.time, experiment.target_accuracy)

    @property
    def eval_every(self) -> int:
        return self.experiment.eval_every or (self.experiment.clients if self.method.asynchronous else 1)

    @property
    def checkpoint_every(self) -> int:
        return self.experiment.checkpoint_every or (self.experiment.clients if self.method.asynchronous else 1)

    def costs(self) -> CostModel:
        return CostModel(
            self.fleet,
            self.data.sizes,
            self.method.local,
            self.shapes.__getitem__,
            self.traced.widths(self.traced.full()),
            unit=self.experiment.time_scale if self.wall else 1.0,
        )

    def server(self, record: Record) -> Server:
        experiment, method = self.experiment, self.method
        ledger = Ledger(self.data.sizes.tolist(), self.costs(), record, lr=experiment.lr)
        schedule, update = method.schedule, method.update
        scheduler = SCHEDULERS[schedule.scheduler]
        if isinstance(update, StalenessMix):
            return AsyncServer(
                self.params.copy(),
                self.parts,
                scheduler,
                ledger,
                mixing=update.mixing,
                staleness=update.staleness,
                bound=schedule.delay_bound,
                seed=experiment.seed,
                learn=self.wall,
            )
        table = ledger.costs.table([part.widths for part in self.parts])
        bound = delay_bound(table) if schedule.delay_bound is None else schedule.delay_bound
        draw = ScheduledDraw(self.parts, scheduler(table, bound), experiment.seed)
        server_lr = update.mixing if isinstance(update, SyncMix) else update.server_lr
        weights = update.weights if isinstance(update, Mean) else "uniform"
        return RoundServer(self.params.copy(), draw, ledger, record, server_lr=server_lr, weights=weights)

    @property
    def recipe(self) -> Recipe:
        experiment = self.experiment
        return Recipe(self.traced, self.method.local, experiment.seed, experiment.fragment_scale)

    def without_training_rows(self) -> "Assembly":
        """Itself less the training data but for what an evaluation may need; shard sizes stay known."""
        dataset = self.data.dataset
        few = replace(
            dataset,
            x_train=dataset.x_train[:STATISTICS_SAMPLES],
            y_train=dataset.y_train[:STATISTICS_SAMPLES],
        )
        return replace(self, data=replace(self.data, dataset=few))


def assemble(experiment: Experiment, model: nn.Module | None = None, dataset: Dataset | None = None) -> Assembly:
    """Builds a run's parts; ValueError says in one sentence what is wrong with the experiment.

    `model` and `dataset` are the user's own, in place of the named ones.
    """
    method = resolve(experiment)
    fleet = make_fleet(experiment.capabilities, experiment.clients, units=experiment.units, seed=experiment.seed)
    if dataset is None:
        dataset = load_dataset(experiment.dataset, experiment.data_dir)
    shards = partition(
        dataset.y_train,
        dataset.y_test,
        experiment.clients,
        experiment.partition,
        dirichlet=experiment.dirichlet,
        labels_per_client=experiment.labels_per_client,
        seed=experiment.seed,
    )
    example = torch.from_numpy(dataset.x_train[:2])
    if model is None:
        model = build_model(
            experiment.model,
            example,
            dataset.classes,
            hidden=experiment.hidden,
            dropout=experiment.dropout,
            seed=experiment.seed,
        )
    traced = trace(model, example)
    sets = _index_sets(method, traced)
    params = flatten(traced.module)
    params[owners(traced, sets) == 0] = 0.0
    widths = {traced.widths(s) for s in (*sets, traced.full())}
    shapes = {shape: measure(traced, shape, example) for shape in sorted(widths)}
    assembly = Assembly(experiment, method, federate(dataset, shards), traced, fleet, params, sets, shapes)
    _check_feasible(assembly)
    return assembly


def _index_sets(method: Method, traced: Traced) -> tuple[IndexSet, ...]:
    if not isinstance(method.submodel, Fragments):
        return (traced.full(),)
    if not traced.groups:
        reasons = "; ".join(traced.uncut.values()) or "it has no hidden units"
        raise ValueError(f"model: nothing of {type(traced.module).__name__} can be cut into fragments: {reasons}")
    return fragments(traced, method.submodel.ratios)


def _check_feasible(assembly: Assembly) -> None:
    """Refuses a start in which some client could never be given work."""
    schedule = assembly.method.schedule
    table = assembly.costs().table([part.widths for part in assembly.parts])
    cheapest = table.argmin(axis=1)
    costs = table.min(axis=1)
    worst = int(costs.argmax())
    where = f"client {worst} with its cheapest fragment {cheapest[worst]}"
    if not np.isfinite(costs[worst]):
        raise ValueError(f"capabilities: {where} lacks the memory to train it; give it more or cut smaller fragments")
    bound = schedule.delay_bound
    if schedule.scheduler == "gre-raa" and bound is not None and costs[worst] > bound * (1 + 1e-9):
        raise ValueError(
            f"delay_bound: {bound:g} leaves {where} nothing to train, which costs {costs[worst]:.4g}; "
            f"give at least {costs[worst]:.4g}, or leave it out for K* = {delay_bound(table):.4g}"
        )
