"""The description of a study's data, model, clients and local training, as text."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.studies.study import Study
from fedraa.client.lr_schedule import target_cosine
from fedraa.config.experiment import Experiment
from fedraa.data.partition import make_partitioner
from fedraa.settings.resolve import resolve_method

CLASSES = {
    "digits": 10,
    "mnist": 10,
    "cifar10": 10,
    "cifar10-subset": 10,
    "agnews": 4,
    "emnist": 47,
    "cifar100": 100,
    "roles": 62,
}
# The text omits a setting that has more than MAX_VALUES values in the study.
MAX_VALUES = 3


def describe_setting(study: Study) -> str:
    """Describe the study's data, model, clients, partition, local work, length and learning rate.

    The text omits settings that the study varies.
    """
    experiments = [cell.experiment for cell in study.cells]
    parts: Sequence[Callable[[Experiment], str]] = (
        data_name,
        model_name,
        lambda experiment: f"{experiment.client_count} clients",
        _describe_split,
        _describe_work,
        _describe_length,
        _describe_rate,
    )
    values_of_parts = (list(dict.fromkeys(filter(None, map(part, experiments)))) for part in parts)
    return ", ".join(" or ".join(values) for values in values_of_parts if 0 < len(values) <= MAX_VALUES)


def _describe_rate(experiment: Experiment) -> str:
    """Return the learning rate as text, empty if the rate is adaptive."""
    local = resolve_method(experiment).local
    if target_cosine(local.lr_schedule) is not None:
        return ""
    return f"lr {local.lr:g}"


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
