"""Studies that test the paper on FedSAM and MoFedSAM."""

from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.studies.generalisation import EIGENVALUE, PERTURBED, TRAIN_ACCURACY
from benchmarks.studies.metrics import CLIENT_MEAN, CLIENT_STD, to_target
from benchmarks.studies.recipes import small_clients, wrong_labels
from benchmarks.studies.recipes.scale import AUGMENTED, Scale
from benchmarks.studies.study import Cell, Claim, Study
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths

METHODS = ("fedavg", "scaffold", "fedrobust", "fedcm", "mimelite", "fedsam", "mofedsam")
SPLITS: dict[str, dict[str, Any]] = {
    "IID": {"partition": "iid"},
    "Dirichlet 0.6": {"partition": "dirichlet", "dirichlet": 0.6},
    "Dirichlet 0.3": {"partition": "dirichlet", "dirichlet": 0.3},
}
# For each data partition: a method's training accuracy, validation accuracy and its standard deviation, and rounds to
# the target (None if missed), from Tables 2, 4 and 5. Dirichlet 0.6 on EMNIST is from Table 1, because three rows of
# Table 4 have numbers of other methods.
Numbers = tuple[tuple[float, float, float, float | None], ...]
EMNIST: dict[str, Numbers] = {
    "fedavg": ((96.98, 89.95, 1.95, 32), (95.07, 84.38, 4.03, 43), (93.66, 82.83, 4.42, 61)),
    "scaffold": ((96.04, 88.79, 2.38, 51), (93.85, 84.09, 4.56, 69), (92.85, 82.01, 4.95, 88)),
    "fedrobust": ((95.63, 87.67, 1.63, 66), (93.17, 83.70, 3.37, 91), (92.10, 81.80, 3.79, 103)),
    "fedcm": ((97.47, 91.13, 2.07, 18), (96.16, 84.85, 4.11, 28), (94.83, 83.09, 4.58, 47)),
    "mimelite": ((97.26, 91.29, 2.11, 16), (96.22, 84.88, 4.22, 25), (94.90, 83.14, 4.55, 46)),
    "fedsam": ((97.42, 90.22, 1.50, 22), (95.73, 84.75, 3.04, 38), (94.32, 82.97, 3.56, 53)),
    "mofedsam": ((97.58, 91.52, 1.53, 13), (96.42, 85.07, 2.95, 24), (94.98, 83.28, 3.59, 41)),
}
CIFAR10: dict[str, Numbers] = {
    "fedavg": ((94.95, 85.97, 3.53, 238), (93.15, 81.87, 5.09, 307), (91.89, 77.39, 5.62, None)),
    "scaffold": ((93.04, 83.82, 3.72, 290), (91.76, 80.61, 5.64, 546), (90.02, 75.67, 5.93, None)),
    "fedrobust": ((91.63, 82.44, 3.15, 361), (90.82, 79.63, 4.21, 847), (89.72, 73.11, 5.11, None)),
    "fedcm": ((97.02, 88.14, 3.33, 87), (95.61, 83.30, 4.77, 136), (93.88, 81.34, 5.50, 583)),
    "mimelite": ((97.16, 88.53, 3.53, 82), (95.73, 83.18, 4.65, 152), (93.97, 81.83, 5.53, 548)),
    "fedsam": ((95.42, 87.36, 2.85, 205), (94.20, 83.06, 3.87, 269), (92.90, 79.82, 4.98, 816)),
    "mofedsam": ((97.22, 88.96, 2.94, 75), (95.67, 83.92, 3.65, 124), (94.12, 83.35, 5.06, 490)),
}
CIFAR100: dict[str, Numbers] = {
    "fedavg": ((84.68, 58.97, 3.56, 253), (79.57, 53.57, 5.40, 302), (77.61, 51.22, 6.17, 593)),
    "scaffold": ((83.41, 57.16, 4.32, 327), (78.49, 51.49, 5.87, 551), (76.30, 48.89, 6.59, None)),
    "fedrobust": ((82.58, 55.87, 3.35, 378), (76.80, 49.06, 4.75, 893), (75.26, 47.92, 5.86, None)),
    "fedcm": ((87.05, 59.64, 3.73, 149), (82.46, 55.73, 5.11, 189), (79.91, 52.57, 6.28, 410)),
    "mimelite": ((87.42, 59.87, 3.67, 143), (82.53, 55.82, 5.04, 182), (79.96, 52.60, 6.31, 397)),
    "fedsam": ((85.65, 59.11, 3.11, 228), (81.04, 54.69, 4.36, 245), (78.05, 51.78, 5.43, 561)),
    "mofedsam": ((87.82, 60.02, 3.20, 129), (82.62, 56.60, 4.42, 124), (80.09, 52.90, 5.62, 373)),
}
# The target accuracy by data set.
TARGETS = {"digits": 0.90, "mnist": 0.95, "cifar10-subset": 0.40, "emnist": 0.80, "cifar10": 0.80, "cifar100": 0.50}
# By study: a note on numbers of Dirichlet 0.6 that differ between two of the paper's tables.
CONTRADICTIONS = {
    "fedsam_emnist": (
        "At Dirichlet 0.6 the paper's Tables 1 and 4 differ for FedCM, MimeLite and FedSAM. The paper's numbers here "
        "are from Table 1.",
    ),
    "fedsam_cifar100": (
        "At Dirichlet 0.6 the paper's Tables 1 and 5 differ for FedCM and MimeLite. The paper's numbers here are from "
        "Table 5.",
    ),
}
STEPS = to_target(TARGETS, "step")
METRICS = (CLIENT_MEAN, CLIENT_STD, STEPS, TRAIN_ACCURACY)
CURVES = "The paper gives only curves, no numbers."
AFFINE = "Here the affine change that FedRobust makes to the inputs scales and shifts each input separately."
NOTES = (
    "As in the paper, all methods have local momentum 0 and give all clients the same weight.",
    "The paper tunes every learning rate on a grid and does not publish the result. Here all methods have 0.1, unless "
    "`--terms tuned` gives them the values of `fedraa tune`.",
)
FLATNESS = (
    "Flatness is measured on 1,000 training samples: the largest eigenvalue of the Hessian of the loss, and the mean "
    "rise of the loss over ten random perturbations with a tenth of the norm of the parameters."
)
SMALL = (
    "These runs have 20 clients, one or two epochs and a small model instead of the paper's 100 clients, ten epochs "
    "and models. ρ is 0.05, and in the paper 0.5.",
)
STAND_INS = {
    "mnist": "The data are MNIST instead of EMNIST, and the model is an MLP instead of a CNN.",
    "cifar10-subset": "The data are a subset of CIFAR-10 (10,000 training and 2,000 test images), and the model is a "
    "small CNN instead of ResNet-18.",
    "digits": "The data are digits instead of the paper's data: ten classes that are easy to separate. The model is "
    "an MLP with 64 hidden units.",
}


def _make_experiment(scale: Scale, dataset: str, **own: Any) -> Experiment:
    """Return an experiment in which each client joins a round with probability 0.2. All clients have equal weights.

    The full size has the paper's 100 clients and 10 local epochs. The sizes `quick` and `standard` have fewer.
    """
    assert (dataset in STAND_INS) != scale.paper
    common: dict[str, Any] = {"participation": "bernoulli:0.2", "lr": 0.1, "momentum": 0.0, "weights": "uniform"}
    if scale.paper:
        common |= {"model": "resnet18", "batch_size": 128, "rounds": 1000}
        if dataset == "emnist":
            common |= {"model": "cnn-emnist", "batch_size": 32, "rounds": 150}
        common |= {"clients": 100, "local_epochs": 10, "eval_every": 5}
        return scale.experiment(dataset, **common | own)
    quick: dict[str, dict[str, Any]] = {
        "mnist": {"hidden": (64,), "local_epochs": 1, "rounds": 30},
        "cifar10-subset": {"model": "cnn", "local_epochs": 1, "rounds": 40, "eval_every": 4},
        "digits": {"hidden": (64,), "local_epochs": 2, "rounds": 40},
    }
    standard: dict[str, dict[str, Any]] = {
        "mnist": {"hidden": (200,), "local_epochs": 1, "rounds": 60},
        "cifar10-subset": {"model": "cnn", "local_epochs": 1, "rounds": 120, "eval_every": 4} | AUGMENTED,
    }
    common |= {"clients": 20} | scale.pick_value(quick, standard, {})[dataset]
    return scale.experiment(dataset, **common | own)


def _method_fields(scale: Scale, method: str) -> dict[str, Any]:
    """Return the fields for a method, with the perturbation radius for FedSAM and MoFedSAM."""
    if method.endswith("sam"):
        return {"method": method, "local.sam_rho": scale.pick_value(0.05, 0.05, 0.5)}
    return {"method": method}


def fedsam_emnist(scale: Scale) -> Study:
    """Compare FedSAM with six methods on EMNIST at three levels of heterogeneity: Tables 1 and 4."""
    return _heterogeneity_study(
        scale, "fedsam_emnist", scale.pick_value("mnist", "mnist", "emnist"), "Tables 1, 4", EMNIST
    )


def fedsam_cifar10(scale: Scale) -> Study:
    """Compare FedSAM with six methods on CIFAR-10 at three levels of heterogeneity: Tables 1 and 2."""
    return _heterogeneity_study(
        scale, "fedsam_cifar10", scale.pick_value("cifar10-subset", "cifar10-subset", "cifar10"), "Tables 1, 2", CIFAR10
    )


def fedsam_cifar100(scale: Scale) -> Study:
    """Compare FedSAM with six methods on CIFAR-100 at three levels of heterogeneity: Tables 1 and 5."""
    return _heterogeneity_study(
        scale, "fedsam_cifar100", scale.pick_value("digits", "cifar10-subset", "cifar100"), "Tables 1, 5", CIFAR100
    )


def _heterogeneity_study(scale: Scale, name: str, dataset: str, tables: str, numbers: dict[str, Numbers]) -> Study:
    columns = list(SPLITS)
    if name == "fedsam_cifar10" and not scale.paper:
        columns = ["Dirichlet 0.6"]
    cells = []
    for column, method in product(columns, METHODS):
        experiment = _make_experiment(scale, dataset, **_method_fields(scale, method) | SPLITS[column])
        paper = _paper_values(*numbers[method][list(SPLITS).index(column)])
        cells.append(Cell(method, experiment, column, paper))
    title = f"FedSAM and its benchmarks (FedSAM, {tables})"
    notes = (*NOTES, AFFINE, *_small_notes(scale, dataset), *CONTRADICTIONS.get(name, ()))
    return Study(name, title, cells, METRICS, "fedsam", notes=notes, seeds=scale.seeds)


def _small_notes(scale: Scale, dataset: str) -> tuple[str, ...]:
    """Return notes on how the sizes `quick` and `standard` differ from the paper; empty for the paper's full size."""
    if scale.paper:
        return ()
    return (STAND_INS[dataset], *SMALL)


def _paper_values(train: float, accuracy: float, deviation: float, rounds: float | None) -> dict[str, float]:
    """Return the paper's numbers by metric. `rounds` is None if the paper's run did not reach the target."""
    values = {CLIENT_MEAN.name: accuracy, CLIENT_STD.name: deviation, TRAIN_ACCURACY.name: train}
    if rounds is not None:
        values[STEPS.name] = rounds
    return values


def fedsam_overfit(scale: Scale) -> Study:
    """Compare FedSAM and MoFedSAM with FedAvg and FedCM on clients with wrong labels."""
    rows: dict[str, dict[str, Any]] = {}
    for plain, perturbed in (("fedavg", "fedsam"), ("fedcm", "mofedsam")):
        rows[plain] = {"method": plain}
        for radius in (0.05, 0.2):
            rows[f"{perturbed}, ρ = {radius:g}"] = {"method": perturbed, "local.sam_rho": radius}
    columns = {
        "labels as they are": "digits",
        f"{wrong_labels.WRONG:.0%} of labels wrong": f"{wrong_labels.__name__}:digits",
    }
    common: dict[str, Any] = SPLITS["Dirichlet 0.6"] | {"clients": 20, "participation": "bernoulli:0.2"}
    common |= {"hidden": (200,), "local_epochs": 10, "rounds": 60, "eval_every": 5, "weights": "uniform"}
    cells = []
    for (column, dataset), (row, own) in product(columns.items(), rows.items()):
        fields = split_paths(common | own, {})
        cells.append(Cell(row, Experiment(dataset=dataset, lr=0.1, momentum=0.0, **fields), column))
    return Study(
        "fedsam_overfit",
        "FedSAM with wrong labels to overfit, Dirichlet 0.6",
        cells,
        (CLIENT_MEAN, CLIENT_STD, TRAIN_ACCURACY),
        reference="fedavg",
        notes=(
            "Test labels are right. Training accuracy is measured on all training labels, including the wrong labels.",
            "No paper has this table.",
            *NOTES[:1],
        ),
        claims=(
            Claim("fedsam, ρ = 0.2", "fedavg", CLIENT_MEAN.name, "The perturbation helps FedAvg"),
            Claim("mofedsam, ρ = 0.2", "fedcm", CLIENT_MEAN.name, "The perturbation helps FedCM"),
        ),
        # Ten seeds, because wrong labels increase the variance between runs. A run takes only seconds.
        seeds=range(10),
    )


def fedsam_flatness(scale: Scale) -> Study:
    """Measure the flatness of FedSAM's and MoFedSAM's minima on clients with wrong labels: Section 1."""
    return replace(
        fedsam_overfit(scale),
        name="fedsam_flatness",
        title="Flatness of the minima of FedSAM, Dirichlet 0.6 (FedSAM, Section 1)",
        metrics=(EIGENVALUE, PERTURBED, TRAIN_ACCURACY),
        notes=(FLATNESS, *NOTES[:1]),
        claims=(),
        seeds=range(5),
    )


def fedsam_small_clients(scale: Scale) -> Study:
    """Compare FedSAM, MoFedSAM, FedAvg and FedCM with ten local epochs on few images per client: Table 1."""
    dataset = scale.pick_value(f"{small_clients.__name__}:cifar10", f"{small_clients.__name__}:cifar10", "cifar10")
    clients, images, rounds = scale.pick_value((40, 100, 60), (40, 100, 120), (100, 500, 1000))
    common: dict[str, Any] = SPLITS["Dirichlet 0.6"] | {"clients": clients, "participation": "bernoulli:0.2", "lr": 0.1}
    common |= {"local_epochs": 10, "rounds": rounds, "eval_every": 10, "weights": "uniform", "momentum": 0.0}
    common |= scale.pick_value({"model": "cnn"}, {"model": "cnn"}, {"model": "resnet18", "batch_size": 128})
    rows: dict[str, dict[str, Any]] = {}
    for plain, perturbed in (("fedavg", "fedsam"), ("fedcm", "mofedsam")):
        rows |= {plain: {"method": plain}, perturbed: {"method": perturbed, "local.sam_rho": 0.1}}
    numbers = {row: _paper_values(*CIFAR10[row][1]) for row in rows}
    metrics = (CLIENT_MEAN, CLIENT_STD, TRAIN_ACCURACY, EIGENVALUE, PERTURBED)
    names = {metric.name for metric in metrics}
    cells = []
    for row, own in rows.items():
        paper = {name: value for name, value in numbers[row].items() if name in names}
        cells.append(Cell(row, scale.experiment(dataset, **common | own), paper=paper))
    small = (
        "The data are 4,000 training and 2,000 test images of CIFAR-10, and the model is a small CNN; ρ is 0.1. "
        "The paper has 500 images per client, ResNet-18 and ρ = 0.5."
    )
    return Study(
        "fedsam_small_clients",
        f"FedSAM with ten local epochs and {images} images per client, Dirichlet 0.6 (FedSAM, Table 1)",
        cells,
        metrics,
        reference="fedavg",
        notes=(
            FLATNESS,
            *scale.pick_value((small,), (small,), ("ρ is 0.1, and in the paper 0.5.",)),
            *NOTES[:1],
        ),
        seeds=scale.seeds,
    )


def fedsam_parameters(scale: Scale) -> Study:
    """Vary the number of participants S, local epochs K and radius rho of FedSAM and MoFedSAM: Figures 3, 5, 6."""
    dataset, epochs = scale.pick_value(("digits", (1, 2, 5)), ("cifar10-subset", (1, 2, 5)), ("cifar10", (5, 10, 20)))
    variants: dict[str, dict[str, Any]] = {
        **{f"S: {share:.0%} of clients": {"participation": f"bernoulli:{share}"} for share in (0.1, 0.2, 0.5)},
        **{f"K = {count}": {"local_epochs": count} for count in epochs},
        **{
            f"ρ = {radius:g}": {"local.sam_rho": radius}
            for radius in scale.pick_value((0.01, 0.05, 0.2), (0.01, 0.05, 0.2), (0.1, 0.5, 1.0))
        },
    }
    cells = []
    for method, (row, own) in product(("fedsam", "mofedsam"), variants.items()):
        fields = _method_fields(scale, method) | SPLITS["Dirichlet 0.6"] | own
        cells.append(Cell(row, _make_experiment(scale, dataset, **fields), method))
    return Study(
        "fedsam_parameters",
        "Participants, local epochs and radius, Dirichlet 0.6 (FedSAM, Figures 3, 5, 6)",
        cells,
        METRICS[:3],
        reference="S: 20% of clients",
        notes=(CURVES, *NOTES, *_small_notes(scale, dataset)),
        claims=(
            Claim("S: 50% of clients", "S: 10% of clients", CLIENT_MEAN.name, "Accuracy grows with the participants"),
        ),
    )


def fedsam_beta(scale: Scale) -> Study:
    """Vary beta in FedCM, MimeLite and MoFedSAM: Figure 3 d.

    Beta is the weight of the new gradient, and 1 - beta the weight of the momentum.
    """
    dataset = scale.pick_value("digits", "cifar10-subset", "cifar10")
    cells = []
    for method, beta in product(("fedcm", "mimelite", "mofedsam"), (0.01, 0.1, 0.2, 0.5, 1.0)):
        fields = _method_fields(scale, method) | SPLITS["Dirichlet 0.6"] | {"local.grad_mix": beta}
        cells.append(Cell(f"β = {beta:g}", _make_experiment(scale, dataset, **fields), method))
    return Study(
        "fedsam_beta",
        "Weight β of new gradients relative to the server's momentum, Dirichlet 0.6 (FedSAM, Figure 3 d)",
        cells,
        METRICS[:3],
        reference="β = 1",
        notes=(
            CURVES,
            "β = 1 is without momentum: FedAvg, or FedSAM for MoFedSAM. The values of β are those that the paper "
            "tried. The paper chose 0.1.",
            *NOTES,
            *_small_notes(scale, dataset),
        ),
        claims=(Claim("β = 0.1", "β = 1", CLIENT_MEAN.name, "β = 0.1 is more accurate than no momentum"),),
    )


def fedsam_momentum(scale: Scale) -> Study:
    """Compare momentum (beta = 0.1) with none, by data partition and number of rounds: Figure 3 d."""
    dataset = scale.pick_value("digits", "cifar10-subset", "cifar10")
    short, long = scale.pick_value((40, 200), (40, 200), (200, 1000))
    cells = []
    for alpha, rounds, method in product((0.6, 0.1), (short, long), ("fedcm", "mimelite", "mofedsam")):
        common: dict[str, Any] = {"partition": "dirichlet", "dirichlet": alpha, "rounds": rounds}
        for beta in (0.1, 1.0):
            fields = _method_fields(scale, method) | common | {"local.grad_mix": beta}
            column = f"Dirichlet {alpha:g}, {rounds} rounds, {method}"
            cells.append(Cell(f"β = {beta:g}", _make_experiment(scale, dataset, **fields), column))
    return Study(
        "fedsam_momentum",
        "Momentum β by data partition and number of rounds (FedSAM, Figure 3 d)",
        cells,
        (CLIENT_MEAN, to_target({**TARGETS, "digits": 0.95}, "step")),
        reference="β = 1",
        notes=(
            CURVES,
            "β = 1 is without momentum: FedAvg, or FedSAM for MoFedSAM. The paper chose 0.1, and has 1,000 rounds.",
            *NOTES[:1],
            *_small_notes(scale, dataset),
        ),
        seeds=scale.pick_value(tuple(range(10)), (0, 1, 2), (0, 1, 2)),
    )
