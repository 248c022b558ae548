"""From an experiment to its run: everything that can be wrong shows here, before the start."""

import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedraa.client.metrics import make_metrics, refuse_misfit
from fedraa.components import text_of
from fedraa.config.experiment import Experiment
from fedraa.data import (
    Dataset,
    Dealing,
    Federated,
    FederatedDataset,
    as_dataset,
    load_dataset,
    make_partitioner,
    make_transforms,
)
from fedraa.data import deal as dealt
from fedraa.data.check import Targets
from fedraa.data.tree import Tree, mapped, take
from fedraa.devices.availability import Timing, read_availability
from fedraa.devices.capabilities import make_fleet
from fedraa.engine.preflight import preflight
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.run_warnings import find_large_inputs, find_probabilities, find_unused_labels, warn
from fedraa.methods.compatibility import check_transforms
from fedraa.methods.resolve import resolve, with_capacities
from fedraa.models import build_model
from fedraa.objectives import Objective, make_objective, misfit
from fedraa.server.aggregation.label_owners import labels_held
from fedraa.submodels import drop_weights, flatten
from fedraa.submodels.indices import owners
from fedraa.submodels.tracing.remembered import trace_once

TRIAL = 32  # test samples that metrics are tried on before the start


def silently(doing: str) -> None:
    """Says nothing of what is being done."""


def build(
    experiment: Experiment,
    model: nn.Module | None = None,
    dataset: Dataset | FederatedDataset | None = None,
    doing: Callable[[str], None] = silently,
) -> RunSpec:
    """Builds a run's parts; ValueError says in one sentence what is wrong with the experiment.

    `model` and `dataset` are the user's own, in place of the named ones. `doing` is told what takes long.
    """
    given = tuple(name for name, own in (("model", model), ("dataset", dataset)) if own is not None)
    if dataset is not None and experiment.data_on_nodes:
        raise ValueError("data_on_nodes: nodes cannot read a dataset that is given as an object; leave it out")
    method, objective = resolve(experiment), make_objective(experiment.objective)
    metrics = make_metrics(experiment.metrics, objective.summary())
    doing(f"reading {experiment.dataset if dataset is None else 'the dataset'}")
    if not isinstance(dataset, FederatedDataset):
        dataset = read(experiment) if dataset is None else as_dataset(dataset, targets(objective))
    experiment = with_clients(experiment, dataset)
    fleet = make_fleet(experiment.capabilities, experiment.clients, units=experiment.units, seed=experiment.seed)
    method, timing = with_capacities(method, fleet.compute), _timing(experiment)
    doing(f"dealing the data to {experiment.clients} clients")
    data = deal(experiment, dataset)
    if experiment.personalised is not None and not np.diff(data.test_offsets).any():
        raise ValueError("personalised: no client that trains has test samples of its own; leave it out")
    dataset = data.dataset
    transforms = make_transforms(experiment.transforms, seed=experiment.seed).drawn
    # a real minibatch, for memory is measured on it; two samples at least, as the tracer wants
    batch = take(dataset.x_train, slice(max(2, experiment.batch_size)))
    transforms = transforms.fitted(batch) if transforms else transforms
    example = mapped(torch.from_numpy, batch)
    wanted = torch.from_numpy(dataset.y_train[:2])
    doing(f"tracing {type(model).__name__ if model is not None else text_of(experiment.model)}: what can be cut")
    if model is None:
        model = build_model(
            experiment.model,
            example,
            dataset.classes,
            hidden=experiment.hidden,
            dropout=experiment.dropout,
            seed=experiment.seed,
            misfit=lambda result: misfit(objective, result, wanted, dataset.classes),
        )
    few, few_y = mapped(torch.tensor, take(dataset.x_test, slice(TRIAL))), torch.tensor(dataset.y_test[:TRIAL])
    refuse_misfit(metrics, model, few, few_y, objective)
    probabilities = find_probabilities(model, example, objective)
    pair = mapped(lambda part: part[:2], example)
    traced = trace_once(model, pair, None if experiment.quiet else _tell)
    if "model" in given:
        _refuse_given(traced.module, pair, objective, wanted, dataset.classes)
    sets = method.submodel.submodels(traced)
    params = flatten(traced.module)
    if not np.isfinite(params).all():
        raise ValueError(f"model: {type(traced.module).__name__} begins with values that are not finite")
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
        labels_held(data, dataset.classes) if objective.classifies else np.zeros((experiment.clients, 1), bool),
        timing,
        metrics,
        objective,
        given,
        transforms,
    )
    doing("checking that it can be run")
    preflight(spec)
    warn((find_large_inputs(data, standardise=experiment.standardise), find_unused_labels(data), probabilities))
    return spec


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def with_clients(experiment: Experiment, dataset: Dataset | FederatedDataset) -> Experiment:
    """The experiment with the partition, and the number of clients, that the data ask for where nobody else does."""
    natural = isinstance(dataset, FederatedDataset) and dataset.has_clients
    partition, clients = experiment.partition, experiment.clients
    if partition is None:
        partition = "natural" if natural else "iid"
    if partition == "natural" and clients == Experiment.model_fields["clients"].default:
        clients = (dataset.own_clients if isinstance(dataset, FederatedDataset) else None) or clients
    return experiment.model_copy(update={"partition": partition, "clients": clients})


def read(experiment: Experiment) -> Dataset | FederatedDataset:
    """The experiment's dataset, with targets as its objective takes them."""
    return load_dataset(experiment.dataset, experiment.data_dir, targets(make_objective(experiment.objective)))


def targets(objective: Objective) -> Targets | None:
    """What checks the targets of a data set; None for labels, which a data set has otherwise."""
    return None if objective.classifies else objective.targets


def _refuse_given(module: nn.Module, batch: Tree, objective: Objective, wanted: torch.Tensor, classes: int) -> None:
    """ValueError for a model of the user's own that returns what the objective cannot take."""
    training = module.training
    with torch.no_grad():
        result = objective.forward(module.eval(), batch)
    module.train(training)
    if (wrong := misfit(objective, result, wanted, classes)) is not None:
        raise ValueError(f"model: {type(module).__name__} {wrong}")


def deal(experiment: Experiment, dataset: Dataset | FederatedDataset) -> Federated:
    """The dataset as the experiment's clients hold it."""
    partitioner = make_partitioner(
        "iid" if experiment.partition is None else experiment.partition,
        dirichlet=experiment.dirichlet,
        labels_per_client=experiment.labels_per_client,
    )
    objective = make_objective(experiment.objective)
    transforms = make_transforms(experiment.transforms, seed=experiment.seed)
    check_transforms(transforms, objective)
    how = Dealing(
        partitioner,
        experiment.clients,
        experiment.seed,
        transforms,
        experiment.allow_nan,
        targets(objective),
        experiment.validation,
        experiment.standardise,
    )
    return dealt(dataset, how)


def _timing(experiment: Experiment) -> Timing:
    path, period = experiment.availability, experiment.availability_period
    if path is None and period is not None:
        raise ValueError(f"availability_period: {period:g} needs the spans that it repeats; give --availability, too")
    there = None if path is None else read_availability(path, experiment.clients, period, experiment.seed)
    return Timing(experiment.seed, experiment.jitter, there)
