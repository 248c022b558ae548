"""Studies that compare methods for personal models with FedAvg."""

from typing import Any

from benchmarks.studies.metrics import PERCENT, Metric, read_last
from benchmarks.studies.race.shakespeare import ROLES
from benchmarks.studies.recipes.scale import NETWORKS, Scale
from benchmarks.studies.study import Cell, Study

FINE_TUNED = "fedavg, fine-tuned"
ROWS: dict[str, dict[str, Any]] = {
    FINE_TUNED: {"method": "fedavg"},
    "fedrep": {"method": "fedrep", "local.algorithm.head_epochs": 1},
    "fedbn": {"method": "fedbn"},
    "ditto": {"method": "ditto"},
}
ACCURACIES = (
    Metric("personal models, accuracy %", read_last("personal_mean", 100), within=PERCENT),
    Metric("worst client %", read_last("personal_worst", 100), within=PERCENT),
    Metric("global model, accuracy %", read_last("client_mean", 100), within=PERCENT),
)
PERPLEXITIES = (
    Metric("personal models, perplexity", read_last("personal_mean"), "less"),
    Metric("worst client", read_last("personal_worst"), "less"),
    Metric("global model, perplexity", read_last("client_mean"), "less"),
)
NOTES = (
    "All columns are means or minima over the clients, and each client uses its own test samples. In the row of "
    "fedavg, a personal model is the global model after training on the client's samples, for the epochs of a task.",
    "The last layer of fedrep's global model is not trained.",
    "All rows have the same learning rate. fedrep trains the head for one more epoch per task, and ditto takes twice "
    "the steps of fedavg.",
)


def personal_cifar10(scale: Scale) -> Study:
    """Compare FedRep, FedBN and Ditto with fine-tuned FedAvg on CIFAR-10, divided by Dirichlet 0.3."""
    common: dict[str, Any] = {
        "clients": 20,
        "personalised": 20,
        "partition": "dirichlet",
        "dirichlet": 0.3,
        "local_epochs": 1,
        "lr": 0.1,
    }
    common |= scale.pick_value(
        {"dataset": "digits", "model": f"{NETWORKS}:digits_batch_norm_cnn", "rounds": 10},
        {"dataset": "cifar10-subset", "model": f"{NETWORKS}:batch_norm_cnn", "rounds": 8},
        {"dataset": "cifar10", "model": f"{NETWORKS}:batch_norm_cnn", "rounds": 200},
    )
    return _personal_study(scale, "personal_cifar10", "Personal methods on CIFAR-10", common, ACCURACIES)


def personal_shakespeare(scale: Scale) -> Study:
    """Compare FedRep, FedBN and Ditto with fine-tuned FedAvg on Shakespeare, with one client per role."""
    common: dict[str, Any] = {
        "dataset": "benchmarks.studies.race.shakespeare:roles",
        "model": "benchmarks.studies.race.shakespeare:LettersBatchNorm",
        "objective": "next-token",
        "personalised": ROLES,
        "local_epochs": 1,
        "lr": 0.7,
        "rounds": scale.pick_value(2, 15, 100),
    }
    return _personal_study(scale, "personal_shakespeare", "Personal methods on Shakespeare", common, PERPLEXITIES)


def _personal_study(scale: Scale, name: str, title: str, common: dict[str, Any], metrics: tuple[Metric, ...]) -> Study:
    rounds = common["rounds"]
    common |= {"weights": "samples", "batch_size": 32, "momentum": 0.0, "eval_every": rounds}
    cells = [Cell(row, scale.experiment(**common, **own)) for row, own in ROWS.items()]
    return Study(name, title, cells, metrics, reference=FINE_TUNED, notes=NOTES)
