"""Build a run from an experiment, and refuse every mistake in it before the run starts."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedraa.aggregation.label_owners import labels_held
from fedraa.attacks.attack import AttackPlan, check_attack, make_attack_plan
from fedraa.client.state_probe import MAX_PROBE_SAMPLES, probe_state
from fedraa.components.calls import convert_custom_errors, convert_errors
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.config.sections import DEFAULT_ATTACKERS
from fedraa.data import (
    Dataset,
    FederatedDataset,
    as_dataset,
    divide_dataset,
    make_transforms,
)
from fedraa.data.partition.divide import refuse_empty_clients
from fedraa.data.transforms import Transforms
from fedraa.data.tree import Tree, map_tree, take_rows
from fedraa.devices.availability import Availability, Daily, Timing, read_availability
from fedraa.devices.compute_speeds import make_fleet, with_links
from fedraa.devices.fedscale import read_fedscale_availability
from fedraa.devices.fleet import COLUMNS, Fleet
from fedraa.devices.link_traces import read_links
from fedraa.engine.device_memory import warn_of_small_memory
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.memory_check import refuse_oversized
from fedraa.engine.model_parts import naming_whole_methods, own_model, refuse_large_tokens, trace_model
from fedraa.engine.objects import object_names, objects_of
from fedraa.engine.preflight import (
    check_runnable,
    warn_of_no_evaluation,
    warn_of_single_steps,
    warn_of_small_shards,
)
from fedraa.engine.process_guard import exclusive_process
from fedraa.engine.robust_checks import warn_of_many_attackers, warn_of_unseen_deltas
from fedraa.engine.run_data import (
    check_clients_with_tests,
    make_dealing,
    measure_labels,
    read_dataset,
    target_check,
    with_clients,
)
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.run_warnings import (
    find_added_outputs,
    find_integer_features,
    find_large_buffer,
    find_large_inputs,
    find_last_channels,
    find_no_logits,
    find_stacked_convolutions,
    find_unused_labels,
    find_wrong_units,
    issue_warnings,
)
from fedraa.errors import InputError, no_effect_error
from fedraa.evaluation.metrics import NamedMetric, make_metrics, refuse_misfit
from fedraa.models import build_model
from fedraa.models.statistics import has_statistics
from fedraa.numbers import format_count
from fedraa.objectives import Objective, describe_misfit, make_objective
from fedraa.privacy.privacy import PRIVACY
from fedraa.settings.resolve import resolve_method, with_capacities
from fedraa.submodels import drop_weights, flatten_parameters
from fedraa.submodels.indices import drop_unowned
from fedraa.waiting import write_line

# Fields without effect if the user passes the model or the dataset as an object.
_ONLY_BY_NAME = {"model": ("hidden", "dropout"), "dataset": ("data_dir",)}
# Before the start, the metrics are tried on this number of test samples.
TRIAL_SAMPLES = 32


def report_nothing(doing: str) -> None:
    """Do nothing with `doing`, a text about the current step of `build_run`."""


@exclusive_process()
def build_run(
    experiment: Experiment,
    model: nn.Module | None = None,
    dataset: Dataset | FederatedDataset | None = None,
    doing: Callable[[str], None] = report_nothing,
) -> RunSpec:
    """Return the run of an experiment, ready to start. Raise InputError if the experiment has a mistake.

    Args:
        experiment: The experiment.
        model: A module that replaces the named model.
        dataset: A dataset that replaces the named one.
        doing: Called with a text about each long step.
    """
    object_fields = objects_of(dict(experiment), model, dataset)
    _refuse_options_without_effect(experiment, model, dataset)
    method = resolve_method(experiment)
    objective = make_objective(experiment.objective)
    metrics = make_metrics(experiment.metrics, objective.summary())
    doing("reading the dataset" if dataset is not None else f"reading {experiment.dataset}")
    dataset = _read_or_check(experiment, dataset, objective)
    experiment = with_clients(experiment, dataset)
    _check_clients(experiment, dataset)
    names = object_names(model, dataset if "dataset" in object_fields else None)
    experiment = experiment.model_copy(update=names)
    _check_concurrency(experiment, method)
    fleet = _make_fleet(experiment)
    method = with_capacities(method, fleet.compute)
    timing = _make_timing(experiment)
    doing(f"dividing the data among {format_count(experiment.client_count, 'client')}")
    data = divide_dataset(dataset, make_dealing(experiment))
    dataset = data.dataset
    check_clients_with_tests(experiment, data)
    transforms, example = _make_example(experiment, dataset, method.local.batch_size)
    doing("checking the model: finding the parts to cut" if method.cuts else "checking the model")
    model = _make_model(experiment, model, dataset, example, objective, metrics)
    no_logits = find_no_logits(model, example, objective)
    with naming_whole_methods(method):
        tell = None if experiment.quiet else write_line
        traced = trace_model(method, model, _first_samples(example, 2), tell, experiment.cut_layers)
        sets = method.submodel.submodels(traced)
    doing("looking for buffers that training changes")
    state = probe_state(traced.module, _first_samples(example, 2 * MAX_PROBE_SAMPLES), objective.outputs)
    if state.min_batch > 1:
        method = replace(method, local=replace(method.local, min_batch=state.min_batch))
    if not has_statistics(traced.module) and not state.estimated:
        _refuse_unless_default(
            experiment, "statistics", f"{type(traced.module).__name__}, which has no statistics to estimate"
        )
    params = flatten_parameters(traced.module)
    if not np.isfinite(params).all():
        raise InputError("model", "it has initial values that are not finite", got=traced.module)
    drop_unowned(params, traced, sets, keep_norms=method.local.full_rate)
    drop_weights(traced.module)
    labels = np.zeros((experiment.client_count, 1), bool)
    if objective.classifies:
        labels = labels_held(data, dataset.classes)
    label_shares, label_overlap = measure_labels(data, method, objective, experiment.seed)
    attack = _start_attack(experiment, objective, dataset.classes, example)
    privacy = None
    if experiment.privacy is not None:
        privacy = PRIVACY.resolve(experiment.privacy)
    spec = RunSpec(
        experiment=experiment,
        method=method,
        data=data,
        traced=traced,
        fleet=fleet,
        params=params,
        index_sets=sets,
        example=example,
        labels_held=labels,
        label_shares=label_shares,
        label_overlap=label_overlap,
        timing=timing,
        metrics=metrics,
        objective=objective,
        object_fields=object_fields,
        transforms=transforms,
        state=state,
        attack=attack,
        privacy=privacy,
    )
    doing("checking that the experiment can be run")
    with naming_whole_methods(method):
        check_runnable(spec)
    _issue_warnings(spec, no_logits)
    return spec


def _issue_warnings(spec: RunSpec, no_logits: str | None) -> None:
    """Issue the warnings about a run. `no_logits` is the result of `find_no_logits`."""
    experiment = spec.experiment
    issue_warnings(
        (
            find_large_inputs(spec.data, standardise=experiment.standardise),
            find_last_channels(spec.data),
            find_integer_features(spec.data, spec.traced.module, spec.example, spec.objective),
            find_unused_labels(spec.data),
            find_wrong_units(spec.fleet),
            find_large_buffer(spec.method.update.per_step, experiment.client_count),
            no_logits,
            find_added_outputs(len(spec.index_sets), spec.objective, scaled=make_worker_spec(spec).fragment_scale),
            find_stacked_convolutions(spec.traced.module, experiment.vmap_batch, experiment.device),
            *spec.state.warnings,
            *warn_of_small_shards(spec),
            *warn_of_single_steps(spec),
            *warn_of_small_memory(spec),
            *warn_of_many_attackers(spec),
            *warn_of_unseen_deltas(spec),
            *warn_of_no_evaluation(spec),
        )
    )


def _read_or_check(
    experiment: Experiment, dataset: Dataset | FederatedDataset | None, objective: Objective
) -> Dataset | FederatedDataset:
    """Return the dataset that the experiment names, or the user's dataset with checked and converted targets."""
    if dataset is None:
        return read_dataset(experiment)
    if isinstance(dataset, FederatedDataset):
        return dataset
    return as_dataset(dataset, target_check(objective))


def _make_fleet(experiment: Experiment) -> Fleet:
    fleet = make_fleet(experiment.compute, experiment.client_count, units=experiment.units, seed=experiment.seed)
    if experiment.links is None:
        return fleet
    return with_links(fleet, read_links(experiment.links, experiment.client_count))


def _make_example(experiment: Experiment, dataset: Dataset, batch_size: int) -> tuple[Transforms, Tree]:
    """Return the transforms of training batches, and a real minibatch of inputs [b, ...], on which memory is measured.

    The tracer needs at least two samples.
    """
    transforms = make_transforms(experiment.transforms, seed=experiment.seed).drawn
    batch = take_rows(dataset.x_train, slice(max(2, batch_size)))
    if transforms:
        transforms = transforms.fitted(batch)
    return transforms, map_tree(lambda part: torch.from_numpy(part.copy()), batch)


def _make_model(
    experiment: Experiment,
    model: nn.Module | None,
    dataset: Dataset,
    example: Tree,
    objective: Objective,
    metrics: tuple[NamedMetric, ...],
) -> nn.Module:
    """Return the model that the experiment names, or a copy of the user's model without wrappers.

    Raises InputError if the model does not fit the inputs, the objective or the metrics.
    """
    wanted = torch.from_numpy(dataset.y_train[:2])

    def output_misfit(result: Any) -> str | None:
        with convert_custom_errors("objective", objective):
            return describe_misfit(objective, result, wanted, dataset.classes)

    if model is not None:
        model = own_model(model, _first_samples(example, 2), output_misfit, objective)
    else:
        if experiment.model in ("mlp", "mlp-exits") and isinstance(example, torch.Tensor):
            _check_hidden(experiment, math.prod(example.shape[1:]), dataset.classes)
        model = build_model(
            experiment.model,
            example,
            dataset.classes,
            hidden=experiment.hidden,
            dropout=experiment.dropout,
            seed=experiment.seed,
            misfit=output_misfit,
        )
    refuse_large_tokens(model, dataset, objective)
    trial_x = map_tree(torch.tensor, take_rows(dataset.x_test, slice(TRIAL_SAMPLES)))
    trial_y = torch.tensor(dataset.y_test[:TRIAL_SAMPLES])
    refuse_misfit(metrics, model, trial_x, trial_y, objective)
    return model


def _first_samples(example: Tree, count: int) -> Tree:
    return map_tree(lambda part: part[:count], example)


def _start_attack(experiment: Experiment, objective: Objective, classes: int, example: Tree) -> AttackPlan | None:
    """Return the attack of the run, ready to be used; None without an attack.

    Args:
        experiment: The experiment.
        objective: The objective.
        classes: Number of classes of the dataset.
        example: A batch of inputs [b, ...].

    Raises:
        InputError: The attack does not suit the objective, or it cannot start.
    """
    plan = make_attack_plan(
        experiment.attack,
        experiment.attackers or DEFAULT_ATTACKERS,
        clients=experiment.client_count,
        seed=experiment.seed,
    )
    if plan is not None:
        check_attack(plan.attack, objective)
        with convert_errors("attack", plan.attack):
            plan.attack.start(classes, example)
    return plan


def _refuse_options_without_effect(
    experiment: Experiment, model: nn.Module | None, dataset: Dataset | FederatedDataset | None
) -> None:
    """Raise InputError if an option that is set has no effect, because the model or the dataset is an object."""
    if dataset is not None and experiment.data_on_nodes:
        raise no_effect_error("data_on_nodes", True, "a dataset that is given as an object")
    for component, given in (("model", model), ("dataset", dataset)):
        if given is not None:
            for field in _ONLY_BY_NAME[component]:
                _refuse_unless_default(experiment, field, f"a {component} that is given as an object")


def _check_clients(experiment: Experiment, dataset: Dataset | FederatedDataset) -> None:
    """Raise InputError for too many clients, before arrays with a value per client are made."""
    clients = experiment.client_count
    if isinstance(dataset, Dataset):
        refuse_empty_clients(clients, len(dataset.y_train))
    refuse_oversized("clients", clients, np.float64().nbytes * len(COLUMNS) * clients)


def _check_hidden(experiment: Experiment, features: int, classes: int) -> None:
    """Raise InputError if the memory is too small for the model mlp and the vector of its parameters.

    Args:
        experiment: The experiment.
        features: The number of values of a sample.
        classes: The number of outputs.
    """
    widths = (features, *experiment.hidden, classes)
    parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(widths))
    refuse_oversized("hidden", experiment.hidden, 2 * np.float32().nbytes * parameters)


def _check_concurrency(experiment: Experiment, method: Method) -> None:
    """Raise InputError if `concurrency` exceeds the number of clients."""
    concurrency = getattr(method.schedule, "concurrency", None)
    if concurrency is not None and concurrency > experiment.client_count:
        expected = f"at most {experiment.client_count}, the number of clients"
        raise InputError("concurrency", got=concurrency, expected=expected)


def _refuse_unless_default(experiment: Experiment, field: str, beside: str) -> None:
    if experiment.is_set(field):
        raise no_effect_error(field, getattr(experiment, field), beside)


def _make_timing(experiment: Experiment) -> Timing:
    period = experiment.availability_period
    clients = experiment.client_count
    seed = experiment.seed
    spans: Availability | Daily | None = None
    kind, _, trace = str(experiment.availability or "").partition(":")
    if kind == "fedscale":
        if period is not None:
            raise no_effect_error("availability_period", period, "fedscale, in which every trace has a period")
        if experiment.units == "relative":
            raise InputError("units", got="relative", expected="physical, because FedScale's times are in seconds")
        spans = read_fedscale_availability(Path(trace), clients, seed)
    elif experiment.availability is not None:
        spans = read_availability(experiment.availability, clients, period, seed)
    elif period is not None:
        raise no_effect_error("availability_period", period, "no availability", "give --availability also")
    return Timing(seed, experiment.duration_jitter, spans)
