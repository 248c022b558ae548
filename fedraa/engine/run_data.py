"""The data of a run: the data set that the options name, its division among the clients, and their labels."""

from functools import partial

import numpy as np

from fedraa.components.calls import call_custom
from fedraa.composition.compatibility import check_transforms
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.config.sections import ProblemOptions
from fedraa.data import (
    Dataset,
    DivisionSettings,
    Federated,
    FederatedDataset,
    load_dataset,
    make_partitioner,
    make_transforms,
)
from fedraa.data.check import Targets
from fedraa.data.label_shares import measure_label_overlap, measure_label_shares
from fedraa.errors import InputError
from fedraa.objectives import Objective, make_objective


def read_dataset(problem: ProblemOptions) -> Dataset | FederatedDataset:
    """Load the dataset that the options name. If its targets are no class labels, the objective checks the targets."""
    return load_dataset(problem.dataset, problem.data_dir, target_check(make_objective(problem.objective)))


def target_check(objective: Objective) -> Targets | None:
    """Return the function that checks and converts targets, or None if they are class labels."""
    if objective.classifies:
        return None
    return partial(call_custom, "objective", objective, objective.targets)


def with_clients(experiment: Experiment, dataset: Dataset | FederatedDataset) -> Experiment:
    """Return the experiment with defaults for an unset partition and an unset number of clients.

    By default the partition is `dirichlet` if `dirichlet` is set, else `natural` if the dataset assigns its samples to
    clients, else `iid`.
    """
    natural = isinstance(dataset, FederatedDataset) and dataset.has_clients
    partition = experiment.partition
    if partition is None and experiment.dirichlet is not None:
        partition = "dirichlet"
    elif partition is None and natural:
        partition = "natural"
    elif partition is None:
        partition = "iid"
    clients = experiment.clients
    if clients is None and isinstance(partition, str) and partition == "natural":
        clients = getattr(dataset, "own_clients", None)
    return experiment.model_copy(update={"partition": partition, "clients": clients or experiment.client_count})


def make_dealing(experiment: Experiment) -> DivisionSettings:
    """Return the settings for dividing the dataset among the clients."""
    partition = "iid" if experiment.partition is None else experiment.partition
    objective = make_objective(experiment.objective)
    transforms = make_transforms(experiment.transforms, seed=experiment.seed)
    check_transforms(transforms, objective)
    return DivisionSettings(
        partitioner=make_partitioner(partition, dirichlet=experiment.dirichlet),
        clients=experiment.client_count,
        seed=experiment.seed,
        transforms=transforms,
        allow_nan=experiment.allow_nan,
        targets=target_check(objective),
        validation=experiment.validation,
        standardise=experiment.standardise,
    )


def check_clients_with_tests(experiment: Experiment, data: Federated) -> None:
    """Raise InputError if evaluations need more clients with test samples than there are."""
    able = int((np.diff(data.test_offsets) > 0).sum())
    for switch, field in (("personalised", "personalised"), ("client_evals", "client_evals_of")):
        if getattr(experiment, switch) is None:
            continue
        if not able:
            raise InputError(switch, "no client that trains has its own test samples", hint="leave it out")
        count = getattr(experiment, field)
        if count is not None and count > able:
            expected = f"at most {able}, the number of clients with their own test samples"
            raise InputError(field, got=count, expected=expected)


def measure_labels(
    data: Federated, method: Method, objective: Objective, seed: int
) -> tuple[tuple[float, ...] | None, float]:
    """Return the label shares of all clients' data and the overlap with each client's shares, as RunSpec has them.

    A value that the run does not need is not measured: it is None or 1.

    Args:
        data: The clients' data.
        method: The method.
        objective: The objective.
        seed: Seed of the run.
    """
    rule_needs_it = getattr(method.update, "uses_label_overlap", False)
    needs_overlap = objective.classifies and (rule_needs_it or method.local.auto is not None)
    if not (method.local.logit_calibration or needs_overlap):
        return None, 1.0
    shares = measure_label_shares(data, data.dataset.classes, seed)
    if not needs_overlap:
        return shares, 1.0
    return shares, measure_label_overlap(data, shares, seed)
