"""Studies that test the paper "Resource-adaptive federated learning" (RA-Fed, RAM-Fed)."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from benchmarks.studies.metrics import (
    ACCURACY,
    CLIENT_WORST,
    LEAST_COVERAGE,
    LEAST_TRAINED,
    LONGEST_UNTRAINED,
    LONGEST_UNTRAINED_BY_CLIENT,
    after_rounds,
)
from benchmarks.studies.recipes.scale import AUGMENTED, Scale
from benchmarks.studies.study import SEEDS, Cell, Claim, Study

PRINTED = (
    "RA-Fed and RAM-Fed follow the algorithms in the paper: clients train under the mask. The authors' code trains "
    "the whole model, masks the first layer's weights afterwards, and takes 5 epochs instead of 5 steps. In the first "
    "round, all clients train all regions. In every tenth round, all clients train the same randomly drawn regions."
)


def ramfed_memory(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed on clients with very different data and small submodels: RAM-Fed's Table 2."""
    mnist: dict[str, Any] = {"dataset": "mnist", "hidden": (200,), "batch_size": 128, "lr": 0.01}
    digits: dict[str, Any] = {"dataset": "digits", "hidden": (64,)}
    far = digits | {"lr": 0.05, "local_epochs": 5, "rounds": 30, "eval_every": 2}
    columns: dict[str, dict[str, Any]] = scale.pick_value(
        {
            "α = 0.01, lr 0.01, 1 epoch": digits | {"lr": 0.01, "local_epochs": 1, "rounds": 100, "eval_every": 5},
            "α = 0.01, lr 0.05, 5 epochs": far,
        },
        {"α = 0.01, 1 epoch": mnist | {"local_epochs": 1, "rounds": 25}},
        {"α = 0.01": mnist | {"local_steps": 5, "rounds": 2000, "eval_every": 20}},
    )
    rows: dict[str, dict[str, float]] = {
        "ram-fed": {ACCURACY.name: 85.0},
        "ra-fed": {ACCURACY.name: 78.1},
        "ram-fed, units": {},
        "ra-fed, units": {},
    }
    common: dict[str, Any] = {"partition": "dirichlet", "dirichlet": 0.01, "momentum": 0.5, "submodel.level": "S"}
    common |= {"weights": "uniform"}
    cells = []
    for (column, own), (row, paper) in product(columns.items(), rows.items()):
        experiment = scale.experiment(**common | {"method": row.replace(", ", "-")} | own)
        cells.append(Cell(row, experiment, column, paper))
    return Study(
        "ramfed_memory",
        "What RAM-Fed's memory gives over RA-Fed (RAM-Fed, Table 2, S-Arb)",
        cells,
        (ACCURACY, CLIENT_WORST),
        reference="ra-fed",
        notes=(
            "The paper's numbers are for MNIST, Dirichlet 0.01 and the mask level S-Arb. The paper does not state the "
            "number of rounds.",
            "A region has a quarter of the hidden units with all weights into them, the weights from them to the "
            "output layer, and a quarter of the output layer's biases. So every parameter is in exactly one region. In "
            "rows with `units`, a client trains only weights between units of its regions, which are drawn for every "
            "layer.",
            PRINTED,
        ),
        claims=(
            Claim("ram-fed", "ra-fed", ACCURACY.name, "RAM-Fed is more accurate than RA-Fed"),
            Claim("ram-fed, units", "ra-fed, units", ACCURACY.name, "RAM-Fed is more accurate than RA-Fed on units"),
        ),
        seeds=scale.seeds,
    )


def ramfed_participation(scale: Scale) -> Study:
    """Compare FedAvg with RAM-Fed and RA-Fed at the paper's mask level L, if all or few clients join each round."""
    rows: dict[str, dict[str, Any]] = {
        "ram-fed L": {"method": "ram-fed", "submodel.level": "L"},
        "ra-fed L": {"method": "ra-fed", "submodel.level": "L"},
        "fedavg": {"method": "fedavg"},
    }
    columns: dict[str, dict[str, Any]] = {
        "all clients": {},
        "3 of 10 clients": {"participation": "sample:3"},
    }
    common: dict[str, Any] = scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "local_epochs": 1, "rounds": 100},
        {"dataset": "mnist", "hidden": (200,), "batch_size": 128, "local_epochs": 1, "rounds": 25},
        {"dataset": "mnist", "hidden": (200,), "batch_size": 128, "local_steps": 5, "rounds": 2000},
    )
    common |= {"partition": "dirichlet", "dirichlet": 0.01, "momentum": 0.5, "weights": "uniform", "lr": 0.01}
    common |= {"eval_every": scale.pick_value(5, 1, 20)}
    cells = [
        Cell(row, scale.experiment(**common | own | joining), column)
        for (column, joining), (row, own) in product(columns.items(), rows.items())
    ]
    return Study(
        "ramfed_participation",
        "RAM-Fed at level L and FedAvg, if all or few clients join a round, Dirichlet 0.01",
        cells,
        (ACCURACY, CLIENT_WORST),
        reference="fedavg",
        notes=("In the paper all clients join every round. FedAvg trains the full model.", PRINTED),
        seeds=scale.pick_value(tuple(range(10)), (0, 1, 2), (0, 1, 2)),
    )


DRAWN_ONCE = {"submodel.redraw": False}
# The rows of Tables 2 and 3. In the paper's SplitFL, all clients train the same slice, so it is HeteroFL with one
# capacity.
ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "same structure (SplitFL)": {"method": "heterofl", "capacities": (0.5,)},
    "ist": {"method": "ist"},
    "prunefl L": {"method": "prunefl", "submodel.density": 0.5},
    "prunefl S": {"method": "prunefl", "submodel.density": 0.25},
    "oap L": {"method": "oap", "capacities": (0.5,)},
    "oap S": {"method": "oap", "capacities": (0.25,)},
    "oap MIX": {"method": "oap", "capacities": (0.5, 0.25)},
    **{
        f"{method} {level}": {"method": method, "submodel.level": level, **drawn}
        for method, (level, drawn) in product(("ra-fed", "ram-fed"), (("L", {}), ("S", {}), ("MIX", DRAWN_ONCE)))
    },
}
MNIST = {
    "fedavg": (87.9, 91.2, 94.2, 96.4),
    "same structure (SplitFL)": (52.2, 69.9, 72.4, 67.6),
    "ist": (66.9, 80.5, 87.0, 91.5),
    "prunefl L": (80.8, 87.5, 91.5, 94.8),
    "prunefl S": (64.3, 79.1, 86.4, 91.7),
    "oap L": (65.8, 77.7, 84.9, 92.2),
    "oap S": (37.8, 71.7, 75.9, 84.4),
    "oap MIX": (61.5, 74.5, 80.9, 90.4),
    "ra-fed L": (85.2, 89.0, 92.8, 95.6),
    "ra-fed S": (78.1, 86.4, 90.5, 94.1),
    "ra-fed MIX": (82.7, 87.1, 91.0, 94.8),
    "ram-fed L": (88.0, 90.1, 95.4, 96.6),
    "ram-fed S": (85.0, 87.8, 94.2, 94.9),
    "ram-fed MIX": (86.5, 89.6, 94.5, 95.7),
}
CIFAR10 = {
    "fedavg": (61.9, 64.5, 70.6, 75.8),
    "same structure (SplitFL)": (37.6, 45.8, 50.1, 63.8),
    "prunefl L": (48.7, 51.4, 53.6, 60.0),
    "prunefl S": (29.5, 39.7, 42.4, 43.7),
    "oap L": (45.9, 49.4, 50.5, 56.0),
    "oap S": (16.8, 18.0, 27.9, 35.4),
    "oap MIX": (45.5, 43.8, 54.0, 56.8),
    "ra-fed L": (49.2, 54.8, 57.8, 65.1),
    "ra-fed S": (33.4, 44.5, 46.2, 51.1),
    "ra-fed MIX": (49.6, 53.4, 54.6, 61.6),
    "ram-fed L": (52.7, 55.6, 61.8, 65.3),
    "ram-fed S": (39.5, 47.5, 49.2, 51.1),
    "ram-fed MIX": (50.8, 53.7, 60.5, 61.4),
}
AGNEWS = {
    "fedavg": (73.7, 71.8, 82.0, 82.2),
    "same structure (SplitFL)": (50.4, 73.4, 82.0, 83.4),
    "ist": (51.6, 52.3, 57.7, 62.8),
    "prunefl L": (67.3, 72.0, 80.3, 80.4),
    "prunefl S": (57.8, 59.6, 71.2, 72.2),
    "oap L": (45.8, 44.1, 51.7, 53.3),
    "oap MIX": (37.3, 39.7, 46.2, 49.4),
    "ra-fed L": (73.3, 78.1, 84.6, 84.9),
    "ra-fed S": (66.7, 72.9, 83.0, 84.1),
    "ra-fed MIX": (70.8, 77.3, 83.9, 84.7),
    "ram-fed L": (77.6, 86.6, 89.3, 89.4),
    "ram-fed S": (73.1, 85.3, 87.1, 88.7),
    "ram-fed MIX": (76.8, 86.5, 88.4, 89.2),
}
SETTINGS = {"partition": "dirichlet", "momentum": 0.5, "weights": "uniform"}
IST_DIVERGES = "With the learning rate 1 IST diverges in most runs."
STAND_IN = (
    "In this paper SplitFL is one slice of the model that all clients train. Here it is HeteroFL with half of the "
    "width for all clients, and with HeteroFL's clipping, weight decay and loss of only the client's own labels."
)


def ramfed_table2_mnist(scale: Scale) -> Study:
    """Compare methods and mask levels with an MLP on MNIST (size quick: digits): RAM-Fed's Table 2."""
    common = scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "rounds": 30, "lr": 0.05, "local_epochs": 5},
        {"dataset": "mnist", "hidden": (200,), "rounds": 25, "batch_size": 128, "lr": 0.01, "local_epochs": 1},
        {"dataset": "mnist", "hidden": (200,), "rounds": 2000, "eval_every": 20, "batch_size": 128, "lr": 0.01},
    )
    at = scale.pick_value((0.1,), (0.01, 0.1), (0.01, 0.05, 0.1, 0.15))
    return _table_study(
        scale, "ramfed_table2_mnist", "MLP (RAM-Fed, Table 2)", common, MNIST, (0.01, 0.05, 0.1, 0.15), at
    )


def ramfed_table2_cifar10(scale: Scale) -> Study:
    """Compare methods and mask levels with a CNN on CIFAR-10 or its subset: RAM-Fed's Table 2."""
    common = scale.pick_value(
        {"dataset": "cifar10-subset", "rounds": 15, "eval_every": 3, "batch_size": 32, "local_epochs": 1},
        {"dataset": "cifar10-subset", "rounds": 60, "eval_every": 5, "batch_size": 32, "local_epochs": 1} | AUGMENTED,
        {"dataset": "cifar10", "rounds": 4000, "eval_every": 20, "batch_size": 128},
    ) | {"model": "cnn", "lr": 0.05}
    at = scale.pick_value((0.3,), (0.3,), (0.1, 0.2, 0.3, 0.4))
    note = "The data are a subset of CIFAR-10: 10,000 training and 2,000 test images; chance is 10 %."
    title = "CNN (RAM-Fed, Table 2)"
    return _table_study(scale, "ramfed_table2_cifar10", title, common, CIFAR10, (0.1, 0.2, 0.3, 0.4), at, note)


def ramfed_table3_agnews(scale: Scale) -> Study:
    """Compare methods and mask levels with FastText on a subset of AG News: RAM-Fed's Table 3."""
    common = {"dataset": "agnews", "model": "fasttext", "batch_size": scale.pick_value(32, 32, 128)}
    common |= scale.pick_value(
        {"rounds": 15, "eval_every": 3, "lr": 1.0, "local_epochs": 1},
        {"rounds": 40, "eval_every": 5, "lr": 1.0, "local_epochs": 1},
        {"rounds": 2000, "eval_every": 20, "lr": 0.1},
    )
    at = scale.pick_value((0.2,), (0.2,), (0.05, 0.1, 0.15, 0.2))
    small = (
        "Batches have 32 samples, and the learning rate is 1. With the paper's values (128 and 0.1) and with the rate "
        "3 the model learns nothing."
    )
    part = "The data are a part of AG News' training rows."
    notes = scale.pick_value((small, part), (small, IST_DIVERGES, part), ())
    title = "FastText (RAM-Fed, Table 3)"
    return _table_study(scale, "ramfed_table3_agnews", title, common, AGNEWS, (0.05, 0.1, 0.15, 0.2), at, *notes)


def _table_study(
    scale: Scale,
    name: str,
    title: str,
    common: dict[str, Any],
    paper: Mapping[str, tuple[float, ...]],
    concentrations: tuple[float, ...],
    at: tuple[float, ...],
    *small_notes: str,
) -> Study:
    """Return a study of the rows for which the paper has numbers.

    Args:
        scale: The size and the data.
        name: The study's name.
        title: The study's title.
        common: The fields of all experiments.
        paper: For each row, the paper's accuracies: one for each of `concentrations`.
        concentrations: The Dirichlet concentrations in the paper.
        at: The concentrations with which this study runs.
        small_notes: Notes for the sizes quick and standard.
    """
    if "local_epochs" not in common:
        common = {"local_steps": 5} | common
    cells = []
    for alpha, (row, numbers) in product(at, paper.items()):
        own = SETTINGS | ROWS[row] | {"dirichlet": alpha} | reprune_fields(row, common["rounds"])
        papers = {ACCURACY.name: numbers[concentrations.index(alpha)]}
        cells.append(Cell(row, scale.experiment(**common | own), f"α = {alpha:g}", papers))
    notes = [f"The paper does not state its rounds; {common['rounds']} are run here on {common['dataset']}."]
    if not scale.paper:
        notes += small_notes
    notes += [PRINTED, STAND_IN]
    seeds = scale.seeds if common["dataset"] == "digits" else SEEDS
    return Study(name, title, cells, (ACCURACY, CLIENT_WORST), "ram-fed L", notes=notes, seeds=seeds)


def reprune_fields(row: str, rounds: int) -> dict[str, Any]:
    """Return the field that sets the number of rounds between two prunings, or no field.

    By default PruneFL prunes every fifty rounds. In a run of under 500 rounds, the field makes it prune ten times.
    Longer runs do not need the field, and the rows of other methods do not have it.
    """
    if row.startswith("prunefl") and rounds < 500:
        return {"submodel.reprune_every": max(1, rounds // 10)}
    return {}


def ramfed_coverage(scale: Scale) -> Study:
    """Vary how often all clients train the same parts (regions) of the model: RAM-Fed's Figures 3 and 4."""
    dataset, hidden, rounds = scale.pick_value(("digits", 64, 60), ("mnist", 200, 200), ("mnist", 200, 2000))
    common = SETTINGS | {
        "dirichlet": 0.15,
        "hidden": (hidden,),
        "rounds": rounds,
        "eval_every": scale.pick_value(2, 5, 20),
    }
    rate: dict[str, Any] = {"lr": 0.01, "batch_size": 128}
    common |= {"local_steps": 5} | scale.pick_value({"lr": 0.05}, rate, rate)
    labels = {0: "always covered", 10: "gaps every 10", 2: "gaps every 2", 1: "same regions for all"}
    cells = []
    for method, level, (gaps, label) in product(("ra-fed", "ram-fed"), ("S", "L"), labels.items()):
        own = {"submodel.level": level, "submodel.uncovered_every": gaps}
        cells.append(Cell(f"{level}, {label}", scale.experiment(dataset, method=method, **common, **own), method))
    return Study(
        "ramfed_coverage",
        f"Coverage in RA-Fed and RAM-Fed, MLP on {dataset}, Dirichlet 0.15, {rounds} rounds (Figures 3, 4)",
        cells,
        (ACCURACY, LEAST_COVERAGE, LEAST_TRAINED, LONGEST_UNTRAINED, LONGEST_UNTRAINED_BY_CLIENT),
        reference="S, always covered",
        notes=(
            "The paper sets three quantities by hand: the least coverage, the number of trained regions, and the "
            "maximum number of rounds without training. Here they follow from the mask level and from the share of "
            "rounds in which all clients train the same regions. The table has their measured values.",
            "`longest untrained by a client` is the paper's τ_q (Assumption 6): the most rounds in a row in which one "
            "client did not train a region. `longest untrained` counts the rounds in which no client trained it.",
            "With `same regions for all`, all clients train the same regions after the first round: one at level S, so "
            "that S* is 1, and two at level L. The least coverage is 10.",
        ),
        claims=(
            Claim(
                "S, always covered",
                "S, gaps every 2",
                ACCURACY.name,
                "After longer untrained spells, the accuracy is lower (Figure 4)",
            ),
            Claim(
                "S, always covered",
                "S, same regions for all",
                ACCURACY.name,
                "With many untrained regions, the accuracy is lower, even if the others are covered well (Figure 3)",
            ),
        ),
        seeds=scale.seeds,
    )


def ramfed_rounds(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed after different numbers of rounds, with one and two hidden layers: RAM-Fed's Table 2.

    As in the paper, the partition is `hsu`, in which all clients have the same number of samples. The paper's MLP has
    two hidden layers.
    """
    dataset, width = scale.pick_value(("digits", 64), ("mnist", 200), ("mnist", 200))
    counts = scale.pick_value((25, 50, 100, 200), (25, 50, 100, 200), (50, 100, 500, 2000))
    common: dict[str, Any] = {"dataset": dataset, "momentum": 0.5, "weights": "uniform", "local_steps": 5}
    common |= {"rounds": counts[-1], "eval_every": 25}
    common |= scale.pick_value({"lr": 0.05}, {"lr": 0.01, "batch_size": 128}, {"lr": 0.01, "batch_size": 128})
    columns: dict[str, dict[str, Any]] = {
        "Hsu, two layers": {"partition": "hsu:0.01", "hidden": (width, width)},
        "Hsu, one layer": {"partition": "hsu:0.01", "hidden": (width,)},
    }
    rows: dict[str, dict[str, Any]] = {
        f"{method} {level}": {"method": method, "submodel.level": level}
        for level, method in product(("S", "L"), ("ram-fed", "ra-fed"))
    }
    rows |= {
        f"{method} MIX, per round": {"method": method, "submodel.level": "MIX"} for method in ("ram-fed", "ra-fed")
    }
    cells = [
        Cell(row, scale.experiment(**common | split | own), column)
        for (column, split), (row, own) in product(columns.items(), rows.items())
    ]
    return Study(
        "ramfed_rounds",
        f"RAM-Fed and RA-Fed by rounds, α = 0.01, five local steps, {dataset} (RAM-Fed, Table 2)",
        cells,
        (*(after_rounds(count) for count in counts[:-1]), ACCURACY),
        reference="ra-fed S",
        notes=(
            "The paper does not state its rounds. Hsu's partition gives all clients equally many samples. MIX per "
            "round draws the clients with half of the model in every round.",
            "The clients draw their samples in turns until classes are used up, so their labels are less unequal than "
            "α suggests. The sum of the squared label shares of a client is 0.46 on average, and not 0.99.",
            PRINTED,
        ),
        seeds=scale.pick_value(tuple(range(10)), (0, 1, 2), (0, 1, 2)),
    )


def ramfed_schedule(scale: Scale) -> Study:
    """Vary which parts (regions) of the model are trained, by how many clients and when: RAM-Fed's Figures 3 and 4."""
    dataset, hidden = scale.pick_value(("digits", 64), ("mnist", 200), ("mnist", 200))
    common = SETTINGS | {
        "dirichlet": 0.15,
        "hidden": (hidden,),
        "rounds": scale.pick_value(160, 200, 2000),
        "eval_every": scale.pick_value(4, 5, 20),
        "local_steps": 5,
    }
    common |= scale.pick_value({"lr": 0.05}, {"lr": 0.01, "batch_size": 128}, {"lr": 0.01, "batch_size": 128})
    rows = {
        "Γ* = 1, S* = 4, τ = 4": "region-schedule(coverage=1, trained=4, tau=4)",
        "Γ* = 2, S* = 4, τ = 4": "region-schedule(coverage=2, trained=4, tau=4)",
        "Γ* = 10, S* = 1, τ = 4": "region-schedule(coverage=10, trained=1, tau=4)",
        "Γ* = 1, S* = 4, τ = 200": "region-schedule(coverage=1, trained=4, tau=200)",
        "Γ* = 2, S* = 4, τ = 200": "region-schedule(coverage=2, trained=4, tau=200)",
    }
    cells = [
        Cell(row, scale.experiment(dataset, method=method, submodel=submodel, **common), method)
        for method, (row, submodel) in product(("ra-fed", "ram-fed"), rows.items())
    ]
    return Study(
        "ramfed_schedule",
        "Coverage Γ*, trained regions S* and longest wait τ, set by hand (RAM-Fed, Figures 3, 4)",
        cells,
        (ACCURACY, LEAST_COVERAGE, LEAST_TRAINED, LONGEST_UNTRAINED_BY_CLIENT),
        reference="Γ* = 2, S* = 4, τ = 4",
        notes=(
            "A client trains one of four regions in a round, the paper's level S. The paper has only curves.",
            "Γ* is the least number of clients of a trained region, S* the number of regions that are trained in a "
            "round, and τ the number of rounds after which a client trains a region again, one more than `longest "
            "untrained by a client`. A region has hidden units.",
            "All clients train all regions in the first round. In a run with fewer rounds than τ, each client trains "
            "only some of the regions afterwards.",
        ),
        seeds=scale.seeds,
    )
