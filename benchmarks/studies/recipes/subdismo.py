"""Studies that test the paper "Resource-aware distributed minimax optimization" (SubDisMO)."""

from itertools import product
from typing import Any

from benchmarks.studies.metrics import CLIENT_MEAN, CLIENT_STD, FLOPS_PER_SAMPLE, LEAST_COVERAGE, upload_size
from benchmarks.studies.recipes.scale import NETWORKS, Scale
from benchmarks.studies.recipes.subdismo_numbers import TABLE_1, TABLE_1_CIFAR100, TABLE_2
from benchmarks.studies.study import SEEDS, Cell, Claim, Study
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths

OPEN = (
    "The paper states no learning rate, batch size, number of local steps or number of rounds. Here the learning "
    "rate is 0.1, and batches have 32 samples."
)
BLOCKS = (
    "Instead of the paper's ViT, the model has a norm and two residual blocks of dense layers. If a mask removes a "
    "block, its input still reaches the next layer, as in the ViT. The paper's numbers are in brackets."
)
DEEP_BLOCKS = (
    "Four residual blocks of dense layers behind a norm stand in for the four blocks of the paper's ViT-Small."
)
SUBSET = "The data are a subset of CIFAR-10: 10,000 training and 2,000 test images."
PAPER_SHARES = "In the paper half of the clients train a quarter of the model, and half train half of it."
RAM_FED_SHARE = (
    f"{PAPER_SHARES} Here SubDisMO has these shares, but with RAM-Fed all clients train half. `subdismo_forms` "
    "compares equal shares."
)
ALL_SHARES = (
    f"{PAPER_SHARES} Here SubDisMO, OAP and FedRolex have these shares, but with RAM-Fed and PruneFL all clients train "
    "half. `subdismo_forms` compares equal shares."
)


def _paper_values(accuracy: float, deviation: float) -> dict[str, float]:
    return {CLIENT_MEAN.name: accuracy, CLIENT_STD.name: deviation}


def subdismo_delta(scale: Scale) -> Study:
    """Compare SubDisMO with RAM-Fed, with FedAvg and with two variants of SubDisMO (Tables 1 and 2 of its paper).

    Both variants use the masks of SubDisMO and no perturbation. In the second one, the server also remembers updates.
    """
    common: dict[str, Any] = {
        "model": scale.pick_value(f"{NETWORKS}:residual_mlp", f"{NETWORKS}:residual_mlp", "vit-small"),
        "partition": "dirichlet",
        "dirichlet": 1.0,
        "local_steps": scale.pick_value(5, 10, 10),
        "batch_size": 32,
        "lr": 0.1,
        "momentum": 0.0,
        "weights": "uniform",
        "rounds": scale.pick_value(80, 400, 1000),
        "eval_every": 10,
    }
    dataset = scale.pick_value("cifar10-subset", "cifar10-subset", "cifar10")
    rows: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
        "subdismo δ=0.1": ({"method": "subdismo"}, _paper_values(51.23, 4.77)),
        "subdismo δ=0": ({"method": "subdismo", "local.sam_rho": 0.0}, {}),
        "memory on its masks": ({"method": "subdismo", "local.sam_rho": 0.0, "aggregator": "memorised"}, {}),
        "ram-fed": ({"method": "ram-fed"}, _paper_values(50.19, 4.16)),
        "fedavg (full)": ({"method": "fedavg"}, _paper_values(55.70, 2.96)),
    }
    cells = [Cell(row, scale.experiment(dataset, **common, **own), paper=paper) for row, (own, paper) in rows.items()]
    return Study(
        "subdismo_delta",
        "SubDisMO and its variants on the same masks, Dirichlet 1.0 (SubDisMO, Tables 1, 2)",
        cells,
        (CLIENT_MEAN, CLIENT_STD),
        reference="subdismo δ=0.1",
        notes=(OPEN, RAM_FED_SHARE, *scale.pick_value((SUBSET, BLOCKS), (SUBSET, BLOCKS), ())),
        claims=tuple(
            Claim("subdismo δ=0.1", worse, metric, source)
            for worse, metric, source in (
                ("subdismo δ=0", CLIENT_MEAN.name, "δ = 0.1 is more accurate than δ = 0"),
                ("memory on its masks", CLIENT_MEAN.name, "SubDisMO is more accurate than a memory on its masks"),
                ("subdismo δ=0", CLIENT_STD.name, "δ = 0.1 deviates less than δ = 0"),
            )
        ),
        seeds=scale.seeds,
    )


def subdismo_forms(scale: Scale) -> Study:
    """Compare three forms of SubDisMO (masks of elements, units or blocks) and methods of equal capacity: Table 1."""
    common: dict[str, Any] = {
        "model": scale.pick_value(f"{NETWORKS}:deep_residual_mlp", f"{NETWORKS}:deep_residual_mlp", "vit-small"),
        "partition": "dirichlet",
        "dirichlet": 0.5,
        "local_steps": scale.pick_value(5, 10, 10),
        "batch_size": 32,
        "lr": 0.1,
        "momentum": 0.0,
        "weights": "uniform",
        "rounds": scale.pick_value(80, 200, 1000),
        "eval_every": 20,
    }
    dataset = scale.pick_value("cifar10-subset", "cifar10-subset", "cifar10")
    rows: dict[str, tuple[dict[str, Any], str]] = {
        "subdismo, elements": ({"method": "subdismo"}, "subdismo"),
        "subdismo, units": ({"method": "subdismo", "submodel.form": "units"}, "subdismo"),
        "subdismo, blocks": ({"method": "subdismo", "submodel.form": "blocks"}, "subdismo"),
        "ram-fed MIX": ({"method": "ram-fed", "submodel.level": "MIX"}, "ram-fed"),
        "oap": ({"method": "oap", "capacities": (0.25, 0.5)}, "oap.O"),
        "prunefl, 0.375": (
            {"method": "prunefl", "submodel.density": 0.375, "submodel.reprune_every": common["rounds"] // 10},
            "prunefl.O",
        ),
        "ist, unscaled": ({"method": "ist", "submodel.scaled": False}, "ist.O"),
        "ist, scaled": ({"method": "ist"}, "ist.O"),
    }
    cells = []
    for row, (own, name) in rows.items():
        paper = {CLIENT_MEAN.name: TABLE_1[name][1][0][0]}
        cells.append(Cell(row, scale.experiment(dataset, **common | own), paper=paper))
    return Study(
        "subdismo_forms",
        "SubDisMO's parts as elements, units and blocks, against its rivals at equal shares (SubDisMO, Table 1)",
        cells,
        (CLIENT_MEAN, CLIENT_STD, FLOPS_PER_SAMPLE),
        reference="subdismo, elements",
        notes=(
            OPEN,
            "Half of the clients train a quarter of the blocks and half train half of them. So RAM-Fed has the level "
            "MIX, drawn in every round, and PruneFL the density 0.375.",
            "If whole blocks are left out, the parameters and operations of the paper's Table 7 follow.",
            *scale.pick_value((SUBSET, DEEP_BLOCKS), (SUBSET, DEEP_BLOCKS), ()),
        ),
        seeds=scale.pick_value(tuple(range(6)), (0, 1, 2), SEEDS),
    )


METRICS = (CLIENT_MEAN, CLIENT_STD)
DIGITS = "Digits stand in for CIFAR-10 at the quick size."


# With digits, the methods of some studies end over 90 % and within 3 points, so that no difference shows. The quick
# size of these studies has the data of the standard size, in fewer rounds.
HARDER: dict[str, Any] = {"dataset": "cifar10-subset", "model": f"{NETWORKS}:residual_mlp", "rounds": 40}


def _make_experiment(scale: Scale, *, harder: bool = False, **own: Any) -> Experiment:
    """Return an experiment with ViT-Small on CIFAR-10, or with a residual MLP at the smaller sizes.

    Args:
        scale: The size of the study.
        harder: True if the quick size has a subset of CIFAR-10 instead of digits.
        **own: Fields of the experiment that replace those of the size.
    """
    common: dict[str, Any] = {"batch_size": 32, "lr": 0.1, "partition": "dirichlet", "weights": "uniform"}
    common |= scale.pick_value(
        {"dataset": "digits", "model": f"{NETWORKS}:digits_residual_mlp", "rounds": 60, "local_steps": 5},
        {"dataset": "cifar10-subset", "model": f"{NETWORKS}:residual_mlp", "rounds": 200, "local_steps": 10},
        {"dataset": "cifar10", "model": "vit-small", "rounds": 1000, "local_steps": 10},
    )
    if harder:
        common |= scale.pick_value(HARDER, {}, {})
    return scale.experiment(**common | {"eval_every": scale.pick_value(5, 10, 10)} | own)


def _stand_in_notes(scale: Scale, *, harder: bool = False) -> tuple[str, ...]:
    return scale.pick_value((SUBSET if harder else DIGITS, BLOCKS), (SUBSET, BLOCKS), ())


# Half of the clients train a quarter of the model, and the others train half of the model. With PruneFL, all clients
# train the same half of the parameters.
CAPACITY_FIELDS: dict[str, dict[str, Any]] = {
    "oap": {"capacities": (0.25, 0.5)},
    "fedrolex": {"capacities": (0.25, 0.5), "submodel.capacities.redraw": False},
    "prunefl": {"submodel.density": 0.5},
}
SPLITS: dict[str, dict[str, Any]] = {
    "μ = 0.5": {"dirichlet": 0.5},
    "μ = 1.0": {"dirichlet": 1.0},
    "IID": {"partition": "iid"},
}


IST = (
    "IST gives every unit of every layer to exactly one client. So a round has at most as many clients as the "
    "narrowest layer has units. In the ViTs these are the 8 heads."
)
NARROWEST = {"vit-small": 8, "vit": 8}


def subdismo_table1(scale: Scale) -> Study:
    """Compare SubDisMO, RAM-Fed and 16 pairs of a submodel policy and local training: Table 1."""
    halves: dict[str, tuple[dict[str, Any], dict[str, tuple[tuple[float, float], ...]]]] = {
        "": ({}, {row: papers for row, (_, papers) in TABLE_1.items()}),
        "CIFAR-100, ": ({"dataset": "cifar100", "model": "vit"}, TABLE_1_CIFAR100),
    }
    chosen = list(halves.items())[: scale.pick_value(1, 1, 2)]
    columns = scale.pick_value(("μ = 0.5",), ("μ = 0.5",), tuple(SPLITS))
    cells = []
    for (prefix, (half, papers)), column, (row, (own, _)) in product(chosen, columns, TABLE_1.items()):
        paper = _paper_values(*papers[row][list(SPLITS).index(column)])
        experiment = _cell_experiment(scale, own, momentum=0.0, **half | SPLITS[column])
        cells.append(Cell(row, experiment, prefix + column, paper))
    only_paper = ("The CIFAR-100 half of the table is run only at the paper's size.",)
    notes = (OPEN, ALL_SHARES, IST, *_stand_in_notes(scale), *scale.pick_value(only_paper, only_paper, ()))
    title = "Submodel methods and solvers, 10 clients (SubDisMO, Table 1)"
    return Study("subdismo_table1", title, cells, METRICS, "subdismo", notes=notes)


def _cell_experiment(scale: Scale, own: dict[str, Any], **common: Any) -> Experiment:
    """Return a method's experiment with `own` and `common` fields, and the fields that PruneFL and IST need.

    PruneFL prunes ten times in the run. In IST, a round cannot have more clients than the narrowest layer has units.
    """
    name = own["method"].partition("+")[0]
    experiment = _make_experiment(scale, **common | own | CAPACITY_FIELDS.get(name, {}))
    if name == "prunefl" and not scale.paper and experiment.rounds is not None:
        often = {"submodel.reprune_every": experiment.rounds // 10}
        experiment = experiment.model_copy(update=split_paths(often, experiment.override))
    if name != "ist" or experiment.model not in NARROWEST:
        return experiment
    return experiment.model_copy(update={"participation": f"sample:{NARROWEST[experiment.model]}"})


def subdismo_radius(scale: Scale) -> Study:
    """Vary SubDisMO's perturbation radius delta from 0 to 0.3 on CIFAR-10: Table 2."""
    papers = {delta: _paper_values(*numbers) for delta, numbers in TABLE_2.items()}
    cells = [
        Cell(
            f"δ = {delta:g}",
            _make_experiment(scale, harder=True, method="subdismo", dirichlet=1.0, **{"local.sam_rho": delta}),
            paper=papers.get(delta, {}),
        )
        for delta in (0.0, *papers)
    ]
    title = "Radius δ, Dirichlet 1.0 (SubDisMO, Table 2)"
    notes = (OPEN, *_stand_in_notes(scale, harder=True))
    return Study("subdismo_radius", title, cells, METRICS, "δ = 0.1", notes, seeds=scale.seeds)


ARCHITECTURES = "Instead of ResNet18, the model has two residual blocks of convolutions. Its learning rate is 0.3."


def subdismo_architectures(scale: Scale) -> Study:
    """Compare SubDisMO and other methods on three models: Table 5."""
    rows: dict[str, tuple[dict[str, Any], tuple[tuple[float, float], ...]]] = {
        "fedavg": ({"method": "fedavg"}, ((76.78, 2.92), (55.70, 2.96), (30.95, 2.90))),
        "fedsam": ({"method": "fedsam", "local.sam_rho": 0.1}, ((78.35, 2.89), (57.03, 2.62), (32.11, 2.68))),
        "ist": ({"method": "ist"}, ((62.51, 5.39), (38.06, 10.27), (17.15, 5.54))),
        "oap": ({"method": "oap"}, ((64.90, 3.54), (48.29, 9.29), (26.09, 6.97))),
        "prunefl": ({"method": "prunefl"}, ((64.04, 4.06), (48.20, 5.16), (22.35, 5.80))),
        "fedrolex": ({"method": "fedrolex+fedavg"}, ((65.30, 3.16), (44.84, 4.75), (21.73, 2.57))),
        "ram-fed": ({"method": "ram-fed"}, ((69.15, 3.15), (50.19, 4.16), (23.25, 4.77))),
        "subdismo": ({"method": "subdismo"}, ((76.34, 3.33), (51.23, 4.77), (25.43, 4.56))),
    }
    models: dict[str, dict[str, Any]] = scale.pick_value(
        {
            "small ResNet": {"model": f"{NETWORKS}:digits_resnet", "lr": 0.3, "rounds": 40},
            "residual MLP": {},
        },
        {
            "small ResNet": {"model": f"{NETWORKS}:small_resnet", "lr": 0.3},
            "residual MLP": {},
        },
        {
            "ResNet18": {"model": "resnet18"},
            "ViT-Small": {"model": "vit-small"},
            "ViT, CIFAR-100": {"model": "vit", "dataset": "cifar100"},
        },
    )
    cells = [
        Cell(
            row,
            _cell_experiment(scale, own, dirichlet=1.0, momentum=0.0, **model),
            name,
            _paper_values(*papers[number]),
        )
        for (number, (name, model)), (row, (own, papers)) in product(enumerate(models.items()), rows.items())
    ]
    stand_ins = (*_stand_in_notes(scale), *scale.pick_value((ARCHITECTURES,), (ARCHITECTURES,), ()))
    title = "Architectures, Dirichlet 1.0 (SubDisMO, Table 5)"
    notes = (OPEN, ALL_SHARES, IST, *stand_ins)
    return Study("subdismo_architectures", title, cells, METRICS, "subdismo", notes=notes)


SHARES = (
    "With random masks, half of the clients train a quarter of the weights and half train half of them, so 37.5 % on "
    "average. The bias of the output layer is not masked. With rolling windows, all clients train the same quarter of "
    "the units, or 37.5 % of them in the last row. The paper does not state the share of its windows. The rows with "
    "windows also have FedRolex's loss, in which the scores of labels that a client lacks are 0."
)


def subdismo_masks(scale: Scale) -> Study:
    """Compare random masks with overlapping and disjoint rolling windows, also of an equal share: Table 6."""
    width = scale.pick_value(64, 256, 512)
    rows: dict[str, tuple[dict[str, Any], tuple[dict[str, float], ...]]] = {
        "random": ({"method": "subdismo"}, (_paper_values(51.23, 4.77), _paper_values(55.99, 1.85))),
        "rolling, no overlap": (_rolling_fields(width // 4), (_paper_values(45.11, 5.79), _paper_values(47.35, 1.70))),
        "rolling, 50 % overlap": (
            _rolling_fields(width // 8),
            (_paper_values(51.57, 4.17), _paper_values(55.48, 1.36)),
        ),
        "rolling, no overlap, 37.5 %": (_rolling_fields(3 * width // 8, share=0.375), ({}, {})),
    }
    splits = list(SPLITS.items())[1:]
    mlp = {"model": "mlp", "hidden": (width,)}
    cells = [
        Cell(row, _make_experiment(scale, **mlp | own | split), column, papers[number])
        for (number, (column, split)), (row, (own, papers)) in product(enumerate(splits), rows.items())
    ]
    notes = (
        OPEN,
        *scale.pick_value((DIGITS,), (SUBSET,), ()),
        SHARES,
        f"A window moves by the same number of units in every layer, so the model is an MLP with one hidden layer of "
        f"{width} units, which a quarter and an eighth divide.",
    )
    title = "Mask policies (SubDisMO, Table 6)"
    return Study("subdismo_masks", title, cells, METRICS, "random", notes=notes, seeds=scale.seeds)


def _rolling_fields(stride: int, share: float = 0.25) -> dict[str, Any]:
    shares = {"capacities": (share,), "submodel.capacities.redraw": False}
    return {"method": "fedrolex+fedsam", "local.sam_rho": 0.1, "submodel.stride": stride} | shares


def subdismo_cost(scale: Scale) -> Study:
    """Count the parameters and FLOPs of SubDisMO's submodels and of FedSAM's full model: Table 7."""
    common = {"model": "vit-small", "lr": 0.1, "rounds": 1, "local_steps": 1, "batch_size": 32}
    dataset = scale.pick_value("cifar10-subset", "cifar10-subset", "cifar10")
    smallest, largest = upload_size("least"), upload_size("most")
    rows: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
        "subdismo": ({"method": "subdismo"}, {smallest.name: 55.242, largest.name: 88.522}),
        "fedsam": ({"method": "fedsam"}, {smallest.name: 155.082, largest.name: 155.082}),
    }
    cells = [Cell(row, scale.experiment(dataset, **common, **own), paper=paper) for row, (own, paper) in rows.items()]
    notes = (
        "Only the draws of submodels are random in these numbers, so the runs have one round.",
        "The paper counts only the share of the operations that the mask keeps. Dense kernels save no operations, so "
        "this table counts all of them.",
        "Outside its blocks, the paper's ViT-Small has 7,680 parameters more than the usual embedding and head.",
        "The upload of a client includes the bitmap of its mask, a bit per parameter.",
    )
    title = "Upload and operations of a client, ViT-Small (SubDisMO, Table 7)"
    metrics = (smallest, largest, FLOPS_PER_SAMPLE)
    return Study("subdismo_cost", title, cells, metrics, "fedsam", notes=notes, seeds=(0,), along=None)


def subdismo_clients(scale: Scale) -> Study:
    """Compare SubDisMO and RAM-Fed with 10, 100 and 1000 clients: Table 8."""
    table = {
        "ram-fed": ((50.19, 4.16), (37.09, 8.46), (27.02, 9.88)),
        "subdismo": ((51.23, 4.77), (47.53, 6.41), (32.05, 8.97)),
    }
    counts = scale.pick_value((10, 30, 100), (10, 100, 1000), (10, 100, 1000))
    cells = []
    for (number, clients), (row, papers) in product(enumerate(counts), table.items()):
        own: dict[str, Any] = {"method": row, "momentum": 0.0, "clients": clients, "dirichlet": 1.0, "eval_every": 10}
        experiment = _make_experiment(scale, harder=True, **own)
        cells.append(Cell(row, experiment, f"{clients} clients", _paper_values(*papers[number])))
    notes = (
        OPEN,
        RAM_FED_SHARE,
        "The paper repeats samples so that each client has some thousand samples. Here the clients divide the samples "
        "without repetition.",
        *_stand_in_notes(scale, harder=True),
        *scale.pick_value(
            ("The paper's numbers beside 30 and 100 clients were measured with 100 and 1000 clients.",), (), ()
        ),
    )
    title = "Scalability (SubDisMO, Table 8)"
    return Study("subdismo_clients", title, cells, METRICS, "subdismo", notes=notes)


def subdismo_coverage(scale: Scale) -> Study:
    """Vary SubDisMO's coverage C*, the number of clients that train each parameter in a round: Figure 4."""
    cells = [
        Cell(
            f"{count} of 30 clients",
            _make_experiment(
                scale, harder=True, method="subdismo", clients=30, dirichlet=1.0, participation=f"sample:{count}"
            ),
        )
        for count in (6, 10, 18, 30)
    ]
    return Study(
        "subdismo_coverage",
        "Coverage C* (SubDisMO, Figure 4)",
        cells,
        (*METRICS, LEAST_COVERAGE),
        reference="30 of 30 clients",
        notes=(
            OPEN,
            "The paper sets C* to 1, 2 and 3 by hand. Here C* follows from the number of clients per round. The table "
            "has its measured value: the smallest number of clients that train the same parameter in a round.",
            *_stand_in_notes(scale, harder=True),
        ),
        claims=(
            Claim("30 of 30 clients", "6 of 30 clients", CLIENT_MEAN.name, "Accuracy grows with coverage (Figure 4)"),
        ),
        seeds=scale.seeds,
    )
