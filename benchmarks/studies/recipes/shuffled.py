"""Studies that test the paper on shuffled submodels: submodel policies and generalisation."""

from itertools import product
from typing import Any

from benchmarks.studies.generalisation import ACCURACY_GAP, LOSS_GAP
from benchmarks.studies.metrics import ACCURACY, LOSS
from benchmarks.studies.recipes.scale import NETWORKS, Scale
from benchmarks.studies.study import Cell, Claim, Study
from fedraa.config.experiment import Experiment

OPEN = (
    "The paper limits the labels of a client as FedRolex does. This study has FedRolex's numbers for CIFAR-10: high "
    "heterogeneity means 2 labels per client, and low heterogeneity means 5. The paper does not state learning rate, "
    "local steps and batch size."
)
CAPACITIES = (
    "In FedRolex, capacities go from the full model to a sixteenth. The paper also reports that rolling beats random "
    "if all clients train the full model. Here both are the same method then."
)
TABLE_4 = (
    "Table 4 of the paper is for CIFAR-100 with high heterogeneity, and its clients have the capacities 1/4 and 1/8: "
    "34.37 % with static and 35.30 % with rolling submodels."
)
DIGITS = (
    "At the quick size, 20 clients train an MLP on digits, and 5 of them take part in a round. In the paper 100 "
    "clients train a pre-activated ResNet18 on CIFAR-10. The smallest capacity is a quarter."
)
SUBSET = (
    "20 clients train a small CNN on a subset of CIFAR-10 (10,000 training and 2,000 test images), and 5 of them take "
    "part in a round. In the paper 100 clients train a pre-activated ResNet18."
)
CHANNELS = (
    "The smallest capacity is a quarter, because the six channels of the CNN's first layer cannot be divided into "
    "eighths."
)
OVERFIT = (
    "The model is an MLP with 128 hidden units instead of a pre-activated ResNet18. 5 of 20 clients train it in a "
    "round for five epochs, on a subset of CIFAR-10. It can memorise its 10,000 training images, so training and test "
    "results differ."
)
UNITS = (
    "Submodels have whole units (kernels), as in the paper's experiments. A client of capacity r trains, in the row "
    "`random`, a share r of the units, which is drawn for every client and round; in the row `rolling`, one of 1/r "
    "contiguous blocks; in the row `static`, the first units. All rolling clients of a capacity train the same block "
    "at a time, and a client that is not drawn for a round misses the block of the round. In mixed columns, clients "
    "take the capacities in turn. The server averages whole models: weights that a client does not train keep the "
    "received values."
)
UNSCALED = (
    "In the paper, a scaler after each convolution rescales the activations of submodels. Here nothing rescales them. "
    "The study shuffled_scaler compares both."
)
MIXTURE = (
    "All clients train submodels of the same capacity. The partition mixture:0.5 gives groups of clients the same "
    "class mixture. This is less heterogeneity than in Table 4."
)
QUARTERS = (
    "All clients train a quarter of the units (kernels). In the row `random`, the units are drawn for every client and "
    "round. In the row `rolling`, they are one of four contiguous blocks, the same for all clients of a round. The "
    "server averages whole models: weights that a client does not train keep the received values."
)
HETEROGENEITY = {"high": 2, "low": 5}


def _make_experiment(scale: Scale, **own: Any) -> Experiment:
    small = {"clients": 20, "participation": "sample:5", "lr": 0.1}
    common: dict[str, Any] = scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "rounds": 80} | small,
        {"dataset": "cifar10-subset", "model": "cnn", "rounds": 150} | small,
        {"dataset": "cifar10", "model": "preact-resnet18", "clients": 100, "participation": "sample:10", "rounds": 2000}
        | {"lr": 0.1, "batch_size": 10},
    )
    if own.get("model", "mlp") != "mlp":
        common.pop("hidden", None)
    common |= {"local_epochs": 1, "momentum": 0.0, "eval_every": scale.pick_value(4, 5, 20)}
    return scale.experiment(**common | own)


POLICIES: dict[str, dict[str, Any]] = {
    "rolling (shuffled)": {"method": "shuffled-kernels"},
    "random": {"method": "bernoulli-kernels"},
    # This row has HeteroFL's submodels, and the same local training as the other rows.
    "static (HeteroFL)": {"method": "bernoulli-kernels", "submodel": "prefix"},
}


def shuffled_policies(scale: Scale) -> Study:
    """Compare rolling, random and static submodels with full models (the paper's Figures 1-4 and Table 4)."""
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
            OPEN,
            UNITS,
            UNSCALED,
            "For the full model, all columns with the same heterogeneity show the same runs.",
            CAPACITIES,
            TABLE_4,
            *scale.pick_value((DIGITS,), (SUBSET, CHANNELS), ()),
        ),
        claims=(
            Claim(rolling, "random", ACCURACY.name, "Rolling beats random"),
            Claim(rolling, "random", LOSS.name, "Rolling beats random in test loss"),
            Claim(rolling, "static (HeteroFL)", ACCURACY.name, "Rolling beats static (Table 4)"),
        ),
        seeds=scale.seeds,
    )


def shuffled_norms(scale: Scale) -> Study:
    """Compare submodel policies on CNNs with static batch norm and without normalisation (the paper's Table 4)."""
    networks = {"batch norm": f"{NETWORKS}:batch_norm_cnn", "no norm": "cnn"}
    capacities: tuple[float, ...] = (0.25,)
    partition = "mixture:0.5"
    if scale.paper:
        networks = {"batch norm": "preact-resnet18", "no norm": "cnn-wide"}
        capacities = (0.25, 0.125)
        partition = "labels(per_client=20)"
    dataset, rounds = scale.pick_value(("cifar10-subset", 80), ("cifar10-subset", 300), ("cifar100", 2000))
    common: dict[str, Any] = {"dataset": dataset, "rounds": rounds, "partition": partition, "eval_every": 20}
    levels = " and ".join(f"{capacity:g}" for capacity in capacities)
    cells = []
    for (norm, model), (row, own) in product(networks.items(), POLICIES.items()):
        experiment = _make_experiment(scale, **common | {"model": model, "capacities": capacities} | own)
        cells.append(Cell(row, experiment, f"{norm}, {levels}"))
    return Study(
        "shuffled_norms",
        "Which submodels, with static batch norm and without norm (shuffled submodels, Table 4)",
        cells,
        (ACCURACY, LOSS),
        reference="rolling (shuffled)",
        notes=(
            UNITS,
            UNSCALED,
            TABLE_4,
            *scale.pick_value((MIXTURE, SUBSET), (MIXTURE, SUBSET), ()),
        ),
    )


def shuffled_scaler(scale: Scale) -> Study:
    """Compare submodel policies without and with a scaler, which the paper's networks have."""
    mlp = {"model": "mlp", "hidden": (128,)}
    network: dict[str, Any] = scale.pick_value({}, mlp, mlp)
    cells = []
    for (kind, levels), scaled in product({"mixed": (1.0, 0.5, 0.25), "all 0.25": (0.25,)}.items(), (False, True)):
        common = network | {"partition": "labels(per_client=2)", "capacities": levels}
        if scaled:
            common["local.scale_activations"] = True
        for row, own in POLICIES.items():
            column = f"{kind}, {'scaler' if scaled else 'no scaler'}"
            cells.append(Cell(row, _make_experiment(scale, **common | own), column))
    rolling = "rolling (shuffled)"
    return Study(
        "shuffled_scaler",
        "Which submodels, without and with a scaler (shuffled submodels, Section 5.1)",
        cells,
        (ACCURACY, LOSS),
        reference=rolling,
        notes=(
            UNITS,
            "The paper has a scaler after each convolution, as in HeteroFL: in training, activations of a submodel are "
            "divided by the share of the units that it has. Here the model is an MLP with one hidden layer, after "
            "which the scaler is (`local.scale_activations`).",
            *scale.pick_value((DIGITS,), (), ()),
        ),
        claims=(
            Claim(rolling, "random", ACCURACY.name, "Rolling beats random"),
            Claim(rolling, "static (HeteroFL)", ACCURACY.name, "Rolling beats static (Table 4)"),
        ),
        seeds=scale.pick_value(tuple(range(20)), (0, 1, 2), (0, 1, 2)),
    )


def shuffled_labels(scale: Scale) -> Study:
    """Compare rolling with random submodels for clients with two labels, with five and with all.

    At the size `standard`, the network has batch norm. Without norm, both rows stay at chance (`shuffled_norms`).
    """
    columns = {
        "2 labels": "labels(per_client=2)",
        "5 labels": "labels(per_client=5)",
        "all labels (IID)": "iid",
    }
    rolling, random = "rolling (shuffled)", "random"
    network: dict[str, Any] = scale.pick_value({}, {"model": f"{NETWORKS}:batch_norm_cnn"}, {})
    cells = []
    for (column, partition), row in product(columns.items(), (rolling, random)):
        experiment = _make_experiment(scale, partition=partition, capacities=(0.25,), **network, **POLICIES[row])
        cells.append(Cell(row, experiment, column))
    return Study(
        "shuffled_labels",
        "Rolling and random submodels of a quarter, by the labels of a client (shuffled submodels, Figures 3, 4)",
        cells,
        (ACCURACY, LOSS),
        reference=random,
        notes=(
            QUARTERS,
            UNSCALED,
            "The paper has columns like those with 2 and 5 labels, which are FedRolex's numbers for CIFAR-10, and none "
            "with IID data. The learning rate is not tuned.",
            *scale.pick_value((DIGITS,), (SUBSET,), ()),
        ),
        claims=(Claim(rolling, random, ACCURACY.name, "Rolling beats random"),),
        seeds=scale.pick_value(tuple(range(60)), (0, 1, 2), (0, 1, 2)),
    )


def shuffled_generalisation(scale: Scale) -> Study:
    """Compare submodels with full models by the gap between training and test results (the paper's Tables 1 and 2)."""
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
            OPEN,
            UNITS,
            UNSCALED,
            "All submodels have half of the units.",
            "Both losses are of the final full model in evaluation mode: on the test set, and on the clients' training "
            "data (at most 10,000 samples, evenly spaced).",
            *scale.pick_value((OVERFIT,), (OVERFIT,), ()),
        ),
        claims=(
            Claim("random", "full (FedAvg)", LOSS_GAP.name, "Random submodels have the smaller loss gap"),
            Claim("random", "full (FedAvg)", ACCURACY_GAP.name, "Random submodels have the smaller accuracy gap"),
        ),
    )
