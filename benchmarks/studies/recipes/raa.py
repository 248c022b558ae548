"""Studies that test the Fed-RAA paper: baselines, schedulers, slow devices, number of fragments."""

from itertools import product
from typing import Any

from benchmarks.studies.metrics import ACCURACY, FAIRNESS, STALENESS_TAIL, Metric, at_own_time, to_target
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import FLEETS, Cell, Claim, Study
from fedraa.config.experiment import Experiment

# The target accuracies of Table 2 of the paper, by data set.
TARGETS = {"digits": 0.85, "mnist": 0.93, "cifar10": 0.45, "cifar100": 0.19}
TIME = to_target(TARGETS, "t")
CLOCK = (
    "The paper's times are seconds on its machines, and our times are units of the cost model. So only the order of "
    "the methods and the ratios to Fed-RAA can be compared."
)
OPEN = (
    "The paper does not state its devices, its number of fragments, its mixing weight and its data split. Here half "
    "of the devices have speed 1 and half have speed 3, there are 3 fragments, the mixing weight is 0.6, and the data "
    "are IID, unless the table says otherwise."
)
SMALL = "Digits and an MLP of 64 stand in for the paper's data and models at the quick size, with batches of 32."
MNIST_NUMBERS = "The paper's numbers are for MNIST."
DATASETS = (("digits",), ("mnist",), ("mnist", "cifar10", "cifar100"))
HIDDEN = {"digits": 64, "mnist": 200, "cifar10": 2048, "cifar100": 4096}
BUDGET = {"digits": 15.0, "mnist": 20.0, "cifar10": 60.0, "cifar100": 60.0}
# PruneFL's paper has 50 rounds between two mask updates. These runs are too short for that.
REPRUNE_EVERY_3 = {"submodel.reprune_every": 3}
LATENCIES = {"0.1": 1.6, "0.3": 3.2}


def make_experiment(scale: Scale, dataset: str, **own: Any) -> Experiment:
    """Return an experiment with the settings of the Fed-RAA paper's appendix, such as batches of 128, and with `own`.

    Args:
        scale: The size of the study.
        dataset: The name of the data set.
        own: More settings, and settings that differ from the appendix.
    """
    common = {
        "hidden": (HIDDEN[dataset],),
        "time": BUDGET[dataset],
        "batch_size": {"digits": 32, "cifar100": 64}.get(dataset, 128),
        "lr": {"digits": 0.05}.get(dataset, 0.005),
        "momentum": 0.5,
        "compute": "1:0.5,3:0.5",
    }
    if "model" in own:
        del common["hidden"]
    return scale.experiment(dataset, **common | own)


def _raa_fields(**own: Any) -> dict[str, Any]:
    return {"method": "fed-raa", "fragments": 3, "mixing": 0.6, "eval_every": 1} | own


def _paper_values(time: float, accuracy: float) -> dict[str, float]:
    return {TIME.name: time, ACCURACY.name: accuracy}


# For each row: the fields of the experiment, and the paper's results on MNIST, CIFAR-10 and CIFAR-100. A result is the
# seconds to the target (Table 2) and the final accuracy (Table 5).
BASELINES: dict[str, tuple[dict[str, Any], tuple[dict[str, float], ...]]] = {
    "fed-raa": (
        _raa_fields(),
        (_paper_values(91.06, 93.86), _paper_values(89.85, 47.38), _paper_values(101.86, 20.55)),
    ),
    "fedavg": (
        {"method": "fedavg"},
        (_paper_values(406.35, 96.35), _paper_values(390.83, 52.88), _paper_values(435.51, 25.22)),
    ),
    "fedasync (Fed-Sync)": (
        {"method": "fedasync", "mixing": 0.6, "eval_every": 1},
        (_paper_values(242.46, 96.50), _paper_values(253.11, 53.01), _paper_values(1123.25, 25.41)),
    ),
    "fedprox": (
        {"method": "fedprox"},
        (_paper_values(866.40, 96.40), _paper_values(870.44, 52.89), _paper_values(910.98, 25.87)),
    ),
    "prunefl": (
        {"method": "prunefl"} | REPRUNE_EVERY_3,
        (_paper_values(776.82, 94.13), _paper_values(975.48, 53.60), _paper_values(3158.55, 24.97)),
    ),
    "splitfed": (
        {"method": "splitfed"},
        (_paper_values(840.15, 95.30), _paper_values(769.88, 51.30), _paper_values(2181.59, 23.68)),
    ),
    "ram-fed": (
        {"method": "ram-fed"},
        (_paper_values(808.96, 96.55), _paper_values(783.06, 54.22), _paper_values(918.11, 27.04)),
    ),
}


def raa_baselines(scale: Scale) -> Study:
    """Compare Fed-RAA with its baselines at equal time: time to a target (Table 2), final accuracy (Table 5)."""
    datasets = scale.pick_value(*DATASETS)
    # The time limit is twice the time in which the slowest method reaches the target.
    shorter: dict[str, Any] = scale.pick_value({"time": 8.0}, {}, {})
    cells = [
        Cell(row, make_experiment(scale, dataset, **own, **shorter), dataset, papers[number])
        for (number, dataset), (row, (own, papers)) in product(enumerate(datasets), BASELINES.items())
    ]
    notes = (CLOCK, OPEN, *scale.pick_value((SMALL, MNIST_NUMBERS), (MNIST_NUMBERS,), ()))
    return Study(
        "raa_baselines",
        "Fed-RAA and its baselines at equal time (Fed-RAA, Tables 2 and 5)",
        cells,
        (TIME, ACCURACY),
        reference="fed-raa",
        notes=notes,
        seeds=scale.seeds,
        along="t",
    )


def raa_own_time(scale: Scale) -> Study:
    """Compare the accuracy of methods after 3 times the time that each needs to reach the target (Table 5)."""
    dataset = scale.pick_value("digits", "mnist", "mnist")
    in_flight = _raa_fields(scheduler="gre-raa(in_flight=True)")
    rows: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
        row: (own, papers[0]) for row, (own, papers) in BASELINES.items()
    }
    rows |= {"fed-raa, in flight": (in_flight, {})}
    # The first time limit is for asynchronous methods, the second for methods in rounds.
    longest = scale.pick_value((3.0, 14.0), (15.0, 48.0), (15.0, 60.0))
    accuracy = at_own_time(TARGETS, 3)
    cells = []
    for row, (own, paper) in rows.items():
        asynchronous = own["method"] in ("fed-raa", "fedasync")
        experiment = make_experiment(scale, dataset, **own | {"time": longest[not asynchronous]})
        cells.append(Cell(row, experiment, dataset, {accuracy.name: paper[ACCURACY.name]} if paper else {}))
    return Study(
        "raa_own_time",
        f"Each method at three times its own time to the target, {dataset} (Fed-RAA, Table 5)",
        cells,
        (accuracy, TIME),
        reference="fed-raa",
        notes=(
            "Table 5 gives each method three times the time in which it reaches the target of Table 2 itself.",
            CLOCK,
            OPEN,
            *scale.pick_value((SMALL, MNIST_NUMBERS), (MNIST_NUMBERS,), (MNIST_NUMBERS,)),
        ),
        seeds=scale.pick_value(tuple(range(10)), (0, 1, 2), (0, 1, 2)),
        along="t",
    )


def raa_cut_layers(scale: Scale) -> Study:
    """Compare FedAsync and two variants of Fed-RAA on a CNN: all layers are cut, or one layer ("designated layers")."""
    dataset = scale.pick_value("digits", "mnist", "cifar10")
    # "7" is the CNN's dense layer with 120 units.
    rows: dict[str, dict[str, Any]] = {
        "fed-raa, all layers cut": _raa_fields(),
        "fed-raa, one layer cut": _raa_fields(cut_layers=("7",)),
        "fedasync (Fed-Sync)": {"method": "fedasync", "mixing": 0.6, "eval_every": 1},
    }
    common: dict[str, Any] = {"model": "cnn", "time": scale.pick_value(4.0, 20.0, 60.0)}
    cells = [Cell(row, make_experiment(scale, dataset, **own | common), dataset) for row, own in rows.items()]
    return Study(
        "raa_cut_layers",
        f"Which layers of a CNN are cut into fragments, M = 3, {dataset} (Fed-RAA, Appendix C.1)",
        cells,
        (to_target({"digits": 0.7, "mnist": 0.93, "cifar10": 0.45}, "t"), ACCURACY),
        reference="fed-raa, all layers cut",
        notes=(
            CLOCK,
            "The paper segments only designated layers and does not name them. If all layers are cut, the weights "
            "between two fragments do not exist, so the model is smaller. If only the dense layer of 120 units is cut, "
            "every fragment contains all other layers.",
            OPEN,
        ),
        seeds=scale.seeds,
        along="t",
    )


def raa_clock(scale: Scale) -> Study:
    """Compare two definitions of staleness: the number of updates of the fragment, or of all fragments."""
    dataset = scale.pick_value("digits", "mnist", "mnist")
    rows: dict[str, dict[str, Any]] = {
        "constant weight": {},
        "decay, fragment clock": {"staleness": "polynomial"},
        "decay, server clock": {"staleness": "polynomial", "schedule.staleness_clock": "server"},
    }
    shorter: dict[str, Any] = scale.pick_value({"time": 2.5}, {"time": 8.0}, {})
    cells = [
        Cell(
            row,
            make_experiment(scale, dataset, **_raa_fields(fragments=fragments) | own | shorter),
            f"M = {fragments}",
        )
        for fragments, (row, own) in product((3, 4), rows.items())
    ]
    return Study(
        "raa_clock",
        f"Staleness of the fragment or of the server, M = 3 and 4, {dataset} (Fed-RAA, Algorithm 1)",
        cells,
        (to_target({"digits": 0.9, "mnist": 0.93}, "t"), ACCURACY),
        reference="decay, fragment clock",
        notes=(CLOCK, "The decay is (staleness + 1)^-0.5. The paper calls it optional.", OPEN),
        seeds=scale.pick_value(tuple(range(8)), (0, 1, 2), (0, 1, 2)),
        along="t",
    )


def raa_schedules(scale: Scale) -> Study:
    """Compare Gre-RAA with random, minimum-priority and synchronous assignment of fragments: Table 3."""
    datasets = scale.pick_value(*DATASETS)
    rows: dict[str, tuple[dict[str, Any], tuple[dict[str, float], ...]]] = {
        "gre-raa": (
            _raa_fields(),
            (_paper_values(69.46, 93.95), _paper_values(68.58, 47.43), _paper_values(75.96, 20.74)),
        ),
        "random": (
            _raa_fields(method="fed-raa-random"),
            (_paper_values(78.54, 93.76), _paper_values(84.63, 47.43), _paper_values(60.10, 18.77)),
        ),
        "minimum priority": (
            _raa_fields(method="fed-raa-mp"),
            (_paper_values(80.73, 93.88), _paper_values(84.77, 47.39), _paper_values(78.28, 20.75)),
        ),
        "sync": (
            {"method": "fed-raa-sync", "fragments": 3, "server_lr": 0.6},
            (_paper_values(162.71, 93.94), _paper_values(162.82, 47.84), _paper_values(179.44, 21.46)),
        ),
    }
    cells = [
        Cell(row, make_experiment(scale, dataset, **own), dataset, papers[number])
        for (number, dataset), (row, (own, papers)) in product(enumerate(datasets), rows.items())
    ]
    return Study(
        "raa_schedules",
        "Schedules of Fed-RAA at equal time (Fed-RAA, Table 3)",
        cells,
        (TIME, ACCURACY, STALENESS_TAIL),
        reference="gre-raa",
        seeds=scale.seeds,
        notes=(CLOCK, OPEN, *scale.pick_value((SMALL, MNIST_NUMBERS), (MNIST_NUMBERS,), ())),
        along="t",
    )


def raa_beta(scale: Scale) -> Study:
    """Vary the fraction beta of slow devices in Fed-RAA from 10 to 90 %: Figures 5 and 7 to 9 of the paper."""
    counts = scale.pick_value((3,), (3,), (2, 3, 4, 5))
    cells = []
    for dataset, fragments, beta in product(scale.pick_value(*DATASETS), counts, (0.1, 0.3, 0.5, 0.7, 0.9)):
        experiment = make_experiment(scale, dataset, **_raa_fields(compute=_slow_fleet(beta), fragments=fragments))
        cells.append(Cell(f"β = {beta:g}", experiment, f"{dataset}, M = {fragments}"))
    return _trend_study(
        scale,
        "raa_beta",
        "Share β of devices at speed 1, the others at 3 (Fed-RAA, Figures 5, 7–9)",
        cells,
        (TIME, ACCURACY, STALENESS_TAIL),
        reference="β = 0.1",
        claims=(
            Claim("β = 0.1", "β = 0.9", TIME.name, "With more slow devices, training takes longer (Figure 5)"),
            Claim(
                "β = 0.1", "β = 0.9", ACCURACY.name, "With more slow devices, the final accuracy is lower (Figure 5)"
            ),
        ),
    )


def raa_fragments(scale: Scale) -> Study:
    """Vary the number of fragments of Fed-RAA from 2 to 5: Figure 6 of the paper."""
    cells = [
        Cell(f"M = {fragments}", make_experiment(scale, dataset, **_raa_fields(fragments=fragments)), dataset)
        for dataset, fragments in product(scale.pick_value(*DATASETS), (2, 3, 4, 5))
    ]
    return _trend_study(
        scale,
        "raa_fragments",
        "Number M of fragments (Fed-RAA, Figure 6)",
        cells,
        (TIME, ACCURACY, FAIRNESS),
        reference="M = 2",
        claims=(Claim("M = 2", "M = 5", TIME.name, "With more fragments, training takes longer (Figure 6)"),),
    )


def raa_in_flight(scale: Scale) -> Study:
    """Compare schedulers for 2 to 5 fragments. A variant of Gre-RAA also counts running tasks as updates."""
    dataset = scale.pick_value("digits", "mnist", "mnist")
    schedulers = {
        "gre-raa": "gre-raa",
        "gre-raa, in flight": "gre-raa(in_flight=True)",
        "random": "random",
        "minimum priority": "minimum-priority",
    }
    rows: dict[str, dict[str, Any]] = {row: {"scheduler": name} for row, name in schedulers.items()}
    shorter: dict[str, Any] = scale.pick_value({"time": 2.5}, {"time": 8.0}, {})
    cells = []
    for fragments in (2, 3, 4, 5):
        for row, own in rows.items():
            fields = _raa_fields(fragments=fragments) | own | shorter
            cells.append(Cell(row, make_experiment(scale, dataset, **fields), f"M = {fragments}"))
        whole = {"method": "fedasync", "mixing": 0.6, "eval_every": 1} | shorter
        cells.append(Cell("fedasync", make_experiment(scale, dataset, **whole), f"M = {fragments}"))
    return Study(
        "raa_in_flight",
        f"Gre-RAA with tasks in flight, M = 2 to 5 fragments, {dataset} (Fed-RAA, Table 3)",
        cells,
        (to_target({"digits": 0.9, "mnist": 0.93}, "t"), ACCURACY, STALENESS_TAIL),
        reference="gre-raa",
        notes=(
            CLOCK,
            "The paper's Gre-RAA counts updates that have arrived. The variant `in flight` also counts tasks that "
            "have not ended.",
            "FedAsync trains the whole model, so its runs are the same for all M.",
            *scale.pick_value((SMALL,), (), ()),
        ),
        seeds=scale.pick_value(tuple(range(8)), (0, 1, 2), (0, 1, 2)),
        along="t",
    )


def raa_latency(scale: Scale) -> Study:
    """Vary the number of fragments on devices with a fixed time per task (latency): Figure 6 of the paper."""
    dataset = scale.pick_value("digits", "mnist", "mnist")
    schedulers = {"gre-raa": "gre-raa", "gre-raa, in flight": "gre-raa(in_flight=True)"}
    # For each latency: the fleet, and the duration of a run as a multiple of the duration without latency.
    fleets = {"0": ("1:0.5,3:0.5", 1.0)}
    fleets |= {latency: (str(FLEETS / f"latency-{latency}.csv"), factor) for latency, factor in LATENCIES.items()}
    shortest = scale.pick_value(2.5, 8.0, 20.0)
    cells = []
    for (latency, (fleet, factor)), (name, scheduler) in product(fleets.items(), schedulers.items()):
        for fragments in (2, 3, 4, 5):
            own = _raa_fields(fragments=fragments, scheduler=scheduler, compute=fleet, time=shortest * factor)
            cells.append(Cell(f"M = {fragments}", make_experiment(scale, dataset, **own), f"latency {latency}, {name}"))
    return Study(
        "raa_latency",
        f"Number M of fragments if every task has a latency, {dataset} (Fed-RAA, Figure 6)",
        cells,
        (to_target({"digits": 0.9, "mnist": 0.93}, "t"), ACCURACY),
        reference="M = 2",
        notes=(
            "A slow device trains the whole model in time 1. The latency is a time that every task needs in addition, "
            "whatever the size of its fragment. The fleets are benchmarks/fleets/latency-*.csv.",
            "The paper gives only curves, no numbers. Its times are seconds on its machines.",
            *scale.pick_value((SMALL,), (), ()),
        ),
        seeds=scale.pick_value(tuple(range(10)), (0, 1, 2), (0, 1, 2)),
        along="t",
    )


def _trend_study(
    scale: Scale,
    name: str,
    title: str,
    cells: list[Cell],
    metrics: tuple[Metric, ...],
    *,
    reference: str,
    claims: tuple[Claim, ...],
) -> Study:
    """Return a study for which the paper has curves and no numbers."""
    notes = ("The paper gives only curves, no numbers.", OPEN, *scale.pick_value((SMALL,), (), ()))
    return Study(name, title, cells, metrics, reference, notes=notes, claims=claims, seeds=scale.seeds, along="t")


def _slow_fleet(beta: float) -> str:
    return f"1:{beta:g},3:{1 - beta:g}"
