"""From an experiment to its run: everything that can be wrong shows here, before the start."""

import torch
from torch import nn

from fedraa.config.experiment import Experiment
from fedraa.data import Dataset, Federated, federate, load_dataset, partition
from fedraa.devices.availability import Timing, read_availability
from fedraa.devices.fleet import make_fleet
from fedraa.engine.preflight import preflight
from fedraa.engine.run_spec import RunSpec
from fedraa.methods.resolve import resolve
from fedraa.models import build_model
from fedraa.server.aggregation.label_owners import labels_held
from fedraa.submodels import drop_weights, flatten
from fedraa.submodels.indices import owners
from fedraa.submodels.tracing.trace import trace


def build(experiment: Experiment, model: nn.Module | None = None, dataset: Dataset | None = None) -> RunSpec:
    """Builds a run's parts; ValueError says in one sentence what is wrong with the experiment.

    `model` and `dataset` are the user's own, in place of the named ones.
    """
    method = resolve(experiment)
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
    sets = method.submodel.submodels(traced)
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
    )
    preflight(spec)
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


def _timing(experiment: Experiment) -> Timing:
    path, period = experiment.availability, experiment.availability_period
    if path is None and period is not None:
        raise ValueError(f"availability_period: {period:g} needs the spans that it repeats; give --availability, too")
    there = None if path is None else read_availability(path, experiment.clients, period)
    return Timing(experiment.seed, experiment.jitter, there)
