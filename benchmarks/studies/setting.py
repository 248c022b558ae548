"""The description of a study's data, model, clients and local training, as text."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.studies.study import Study
from fedraa.client.lr_schedule import target_cosine
from fedraa.config.experiment import Experiment
from fedraa.data.partition import make_partitioner
from fedraa.report.differences import method_settings
from fedraa.settings.resolve import resolve_method

CLASSES = {
    "digits": 10,
    "mnist": 10,
    "cifar10": 10,
    "cifar10-subset": 10,
    "agnews": 4,
    "emnist": 62,
    "cifar100": 100,
    "cifar100-subset": 100,
    "roles": 62,
}
# The text omits a setting that has more than MAX_VALUES values in the study.
MAX_VALUES = 3


def describe_setting(study: Study) -> str:
    """Describe the study's data, model, clients, local training, length, devices, target accuracies and evaluations.

    The text omits settings that the study varies.
    """
    experiments = [cell.experiment for cell in study.cells]
    parts: Sequence[Callable[[Experiment], str]] = (
        data_name,
        model_name,
        lambda experiment: f"{experiment.client_count} clients",
        _describe_split,
        _describe_work,
        lambda experiment: f"batches of {resolve_method(experiment).local.batch_size}",
        _describe_length,
        _describe_rate,
        _describe_momentum,
        _describe_participation,
        _describe_devices,
        lambda experiment: _describe_targets(study, experiment),
        lambda experiment: _describe_evaluations(study, experiment),
    )
    values_of_parts = (list(dict.fromkeys(filter(None, map(part, experiments)))) for part in parts)
    return ", ".join(" or ".join(values) for values in values_of_parts if 0 < len(values) <= MAX_VALUES)


def _describe_rate(experiment: Experiment) -> str:
    """Return the learning rate as text, empty if the rate is adaptive."""
    local = resolve_method(experiment).local
    if target_cosine(local.lr_schedule) is not None:
        return ""
    return f"lr {local.lr:g}"


def _describe_momentum(experiment: Experiment) -> str:
    return f"momentum {resolve_method(experiment).local.momentum:g}"


def _describe_participation(experiment: Experiment) -> str:
    """Return the participation as text, empty without rounds or if all clients take part."""
    participation = method_settings(resolve_method(experiment)).get("schedule.participation", "all")
    return "" if participation == "all" else f"participation {participation}"


def _describe_devices(experiment: Experiment) -> str:
    """Return the compute speeds of the devices, or the name of their file; empty if the run has no time limit."""
    if experiment.time is None:
        return ""
    return f"compute {Path(str(experiment.compute)).name}"


def _describe_targets(study: Study, experiment: Experiment) -> str:
    """Return the target accuracies of the study's metrics."""
    targets = (metric.target_for(data_name(experiment)) for metric in study.metrics)
    percents = dict.fromkeys(f"{100 * target:g} %" for target in targets if target is not None)
    return f"target {' and '.join(percents)}" if percents else ""


def _describe_evaluations(study: Study, experiment: Experiment) -> str:
    """Return the interval between evaluations, empty if no metric has a target accuracy."""
    if all(metric.target is None for metric in study.metrics):
        return ""
    in_rounds = "schedule.participation" in method_settings(resolve_method(experiment))
    every = experiment.eval_every or (1 if in_rounds else experiment.client_count)
    unit = "round" if in_rounds else "update"
    return f"evaluated every {every} {unit}s" if every > 1 else f"evaluated every {unit}"


def data_name(experiment: Experiment) -> str:
    """Return the name of the data set, or of the function that makes it."""
    return Path(experiment.dataset.rpartition(":")[2]).stem


def model_name(experiment: Experiment) -> str:
    """Return the model's name, with the hidden sizes of an MLP."""
    if experiment.model == "mlp":
        return f"mlp of {'-'.join(map(str, experiment.hidden))}"
    return str(experiment.model).rpartition(":")[2]


def chance_level(study: Study) -> float:
    """Return the accuracy of uniform guesses, in per cent, on the study's data set with the most classes."""
    return 100 / max(CLASSES[data_name(cell.experiment)] for cell in study.cells)


def _describe_split(experiment: Experiment) -> str:
    partition = experiment.partition
    if partition == "dirichlet":
        return f"Dirichlet {experiment.dirichlet:g}"
    if isinstance(partition, str) and partition.startswith("labels"):
        per_client = getattr(make_partitioner(partition), "per_client", None)
        return f"{per_client} labels a client"
    # A data set that is named `module:function` comes from this repository. The function also divides the data among
    # clients.
    if partition is None and ":" in experiment.dataset:
        return "divided by the data"
    name, _, value = str(partition or "iid").partition(":")
    if value:
        return f"{name.capitalize()} {value}"
    return name.upper()


def _describe_work(experiment: Experiment) -> str:
    if experiment.local_steps is not None:
        return f"{experiment.local_steps} local steps"
    epochs = experiment.local_epochs or 5
    return f"{epochs} local epochs" if epochs > 1 else "1 local epoch"


def _describe_length(experiment: Experiment) -> str:
    limits = {"rounds": experiment.rounds, "updates": experiment.updates, "time": experiment.time}
    return " ".join(f"{name} {value:g}" for name, value in limits.items() if value is not None)
