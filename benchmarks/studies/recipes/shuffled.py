"""Studies of shuffled submodels: the choice of submodels, and generalisation."""

from itertools import product
from typing import Any

from benchmarks.studies.generalisation import ACCURACY_GAP, LOSS_GAP
from benchmarks.studies.metrics import ACCURACY, LOSS
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Claim, Study
from fedraa.config.experiment import Experiment

OPEN = (
    "The paper does not state capacities, labels per client, learning rate and local steps; FedRolex's are taken: "
    "2 labels per client are high heterogeneity, 5 are low, and capacities go from the full model to a sixteenth.",
)
DIGITS = (
    "Digits, an MLP and 20 clients, of which 5 take part, stand in for pre-activated ResNet18 on CIFAR-10 and 100 "
    "clients at the quick size. The smallest capacity is a quarter."
)
SUBSET = (
    "A subset of CIFAR-10 (10,000 training and 2,000 test images), a small CNN and 20 clients, of which 5 take part, "
    "stand in for pre-activated ResNet18 and 100 clients. The smallest capacity is a quarter, because the six channels "
    "of the CNN's first layer cannot be divided into eighths."
)
OVERFIT = (
    "An MLP of 128 on a subset of CIFAR-10, of which 5 of 20 clients train in a round for five epochs, stands in for "
    "pre-activated ResNet18: it can learn its 10,000 training images by heart, so that there is a gap to close."
)
PREACTIVATED = (
    "Digits and a pre-activated ResNet of two blocks of 16 channels stand in for CIFAR-100 and ResNet18, and the CNN "
    "is RA-Fed's; 5 of 20 clients take part in a round."
)
NETWORKS = "benchmarks.studies.recipes.networks"
HETEROGENEITY = {"high": 2, "low": 5}


def _make_experiment(scale: Scale, **own: Any) -> Experiment:
    small = {"clients": 20, "participation": "sample:5", "lr": 0.1}
    common: dict[str, Any] = scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "rounds": 80} | small,
        {"dataset": "cifar10-subset", "model": "cnn", "rounds": 150} | small,
        {"dataset": "cifar10", "model": "preact-resnet18", "clients": 100, "participation": "sample:10", "rounds": 2000}
        | {"lr": 0.1, "batch_size": 10},
    )
    if "model" in own:
        common.pop("hidden", None)
    common |= {"local_epochs": 1, "momentum": 0.0, "eval_every": scale.pick_value(4, 5, 20)}
    return scale.experiment(**common | own)


POLICIES: dict[str, dict[str, Any]] = {
    "rolling (shuffled)": {"method": "shuffled-kernels"},
    "random": {"method": "bernoulli-kernels"},
    # This row has the submodels of HeteroFL, but not HeteroFL's local training.
    "static (HeteroFL)": {"method": "bernoulli-kernels", "submodel": "prefix"},
}


def shuffled_policies(scale: Scale) -> Study:
    """Compare rolling, random, static and full submodels, of equal and mixed capacity: Figures 1 to 4, Table 4."""
    smallest = scale.pick_value(0.25, 0.25, 0.0625)
    capacities = {
        "mixed": scale.pick_value((1.0, 0.5, 0.25), (1.0, 0.5, 0.25), (1.0, 0.5, 0.25, 0.125, 0.0625)),
        f"all {smallest:g}": (smallest,),
    }
    cells = []
    heterogeneity = scale.pick_value(("high",), ("high",), tuple(HETEROGENEITY))
    for level, (kind, levels) in product(heterogeneity, capacities.items()):
        rows: dict[str, dict[str, Any]] = {row: own | {"capacities": levels} for row, own in POLICIES.items()}
        rows["full (FedAvg)"] = {"method": "fedavg"}
        partition = f"labels(per_client={HETEROGENEITY[level]})"
        for row, own in rows.items():
            cells.append(
                Cell(row, _make_experiment(scale, partition=partition, **own), f"{kind}, {level} heterogeneity")
            )
    rolling = "rolling (shuffled)"
    return Study(
        "shuffled_policies",
        "Which submodels (shuffled submodels, Figures 1–4, Table 4)",
        cells,
        (ACCURACY, LOSS),
        reference=rolling,
        notes=(
            *OPEN,
            "The full model is the same run in every column of one heterogeneity.",
            "The paper's one table of numbers is CIFAR-100: static 34.37 %, rolling 35.30 %.",
            *scale.pick_value((DIGITS,), (SUBSET,), ()),
        ),
        claims=(
            Claim(rolling, "random", ACCURACY.name, "Rolling beats random"),
            Claim(rolling, "random", LOSS.name, "Rolling beats random in test loss"),
            Claim(rolling, "static (HeteroFL)", ACCURACY.name, "Rolling beats static (Table 4)"),
        ),
        seeds=scale.seeds,
    )


def shuffled_norms(scale: Scale) -> Study:
    """Compare the policies on networks with static batch norm and without any norm, at a quarter and an eighth."""
    networks = scale.pick_value(
        {"batch norm": f"{NETWORKS}:digits_preactivated", "no norm": "cnn"},
        {"batch norm": f"{NETWORKS}:batch_norm_cnn", "no norm": "cnn"},
        {"batch norm": "preact-resnet18", "no norm": "wide-cnn"},
    )
    labels, mixture = "labels(per_client=2)", "mixture:0.1"
    columns: dict[str, dict[str, Any]] = {
        "batch norm, 1/4, 2 labels": {"model": networks["batch norm"], "partition": labels, "capacities": (0.25,)},
        "batch norm, 1/8, 2 labels": {"model": networks["batch norm"], "partition": labels, "capacities": (0.125,)},
        "batch norm, 1/4, mixture": {"model": networks["batch norm"], "partition": mixture, "capacities": (0.25,)},
        "no norm, 1/4, 2 labels": {"model": networks["no norm"], "partition": labels, "capacities": (0.25,)},
    }
    cells = [
        Cell(row, _make_experiment(scale, **column | own), name)
        for (name, column), (row, own) in product(columns.items(), POLICIES.items())
    ]
    return Study(
        "shuffled_norms",
        "Which submodels, with static batch norm and without norm (shuffled submodels, Figures 3, 4, Table 4)",
        cells,
        (ACCURACY, LOSS),
        reference="rolling (shuffled)",
        notes=(
            *OPEN,
            "All clients train submodels of the same capacity. The mixture partition gives each client a class mixture "
            "from one of a few Dirichlet distributions.",
            *scale.pick_value((PREACTIVATED,), (SUBSET,), ()),
        ),
        seeds=scale.pick_value(tuple(range(8)), (0, 1, 2), (0, 1, 2)),
    )


def shuffled_generalisation(scale: Scale) -> Study:
    """Compare the gap from training to test data of random submodels and the full model: Tables 1 and 2."""
    rows: dict[str, dict[str, Any]] = {
        "full (FedAvg)": {"method": "fedavg"},
        "random": {"method": "bernoulli-kernels", "capacities": (0.5,)},
        "rolling (shuffled)": {"method": "shuffled-kernels", "capacities": (0.5,)},
    }
    learns = {"dataset": "cifar10-subset", "model": "mlp", "hidden": (128,), "lr": 0.05, "local_epochs": 5}
    by_heart: dict[str, Any] = scale.pick_value(learns | {"rounds": 20}, learns | {"rounds": 120}, {})
    cells = []
    for (level, labels), (row, own) in product(HETEROGENEITY.items(), rows.items()):
        experiment = _make_experiment(scale, partition=f"labels(per_client={labels})", **by_heart | own)
        cells.append(Cell(row, experiment, f"{level} heterogeneity"))
    return Study(
        "shuffled_generalisation",
        "Test minus training loss, training minus test accuracy (shuffled submodels, Tables 1, 2)",
        cells,
        (LOSS_GAP, ACCURACY_GAP, ACCURACY),
        reference="full (FedAvg)",
        notes=(
            *OPEN,
            "Both losses are of the final full model in evaluation mode: on the test set, and on the clients' training "
            "data (at most 10,000 samples, evenly spaced).",
            *scale.pick_value((OVERFIT,), (OVERFIT,), ()),
        ),
        claims=(
            Claim("random", "full (FedAvg)", LOSS_GAP.name, "Random submodels have the smaller loss gap"),
            Claim("random", "full (FedAvg)", ACCURACY_GAP.name, "Random submodels have the smaller accuracy gap"),
        ),
    )
