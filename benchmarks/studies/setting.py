"""In words: on which data, with which model, clients and work a study is run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.studies.study import Study
from fedraa.config.experiment import Experiment
from fedraa.data.partition import make_partitioner

CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar10-subset": 10, "agnews": 4, "emnist": 47, "cifar100": 100}
MOST = 3  # values of one setting that are listed; more are what the study varies


def setting(study: Study) -> str:
    """Data, model, clients, split, local work, length and rate, as far as the study does not vary them."""
    experiments = [cell.experiment for cell in study.cells]
    parts: Sequence[Callable[[Experiment], str]] = (
        data,
        model,
        lambda experiment: f"{experiment.clients} clients",
        _split,
        _work,
        _length,
        lambda experiment: f"lr {experiment.lr:g}",
    )
    told = (list(dict.fromkeys(filter(None, map(part, experiments)))) for part in parts)
    return ", ".join(" or ".join(values) for values in told if 0 < len(values) <= MOST)


def data(experiment: Experiment) -> str:
    """The name of its data set; of a function that makes it, the function's."""
    return Path(experiment.dataset.rpartition(":")[2]).stem


def model(experiment: Experiment) -> str:
    if experiment.model == "mlp":
        return f"mlp of {'-'.join(map(str, experiment.hidden))}"
    return str(experiment.model).rpartition(":")[2]


def chance(study: Study) -> float:
    """The accuracy, in per cent, of who guesses; of several data sets the one with the most classes."""
    return 100 / max(CLASSES[data(cell.experiment)] for cell in study.cells)


def _split(experiment: Experiment) -> str:
    partition = experiment.partition
    if partition == "dirichlet":
        return f"Dirichlet {experiment.dirichlet:g}"
    if isinstance(partition, str) and partition.startswith("labels"):
        per_client = getattr(make_partitioner(partition), "per_client", None)
        return f"{per_client} labels a client"
    return str(partition or "IID").upper()


def _work(experiment: Experiment) -> str:
    if experiment.local_steps is not None:
        return f"{experiment.local_steps} local steps"
    epochs = experiment.local_epochs or 5
    return "1 local epoch" if epochs == 1 else f"{epochs} local epochs"


def _length(experiment: Experiment) -> str:
    told = {"rounds": experiment.rounds, "updates": experiment.updates, "time": experiment.time}
    return " ".join(f"{name} {value:g}" for name, value in told.items() if value is not None)
