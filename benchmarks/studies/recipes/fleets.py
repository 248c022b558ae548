"""Studies that come from no paper: equal budgets, stragglers, staleness, networks, schedulers, learning rates."""

from itertools import product
from typing import Any

from benchmarks.studies.metrics import (
    ACCURACY,
    CLIENT_WORST,
    FAIRNESS,
    IDLE,
    PEAK_MEMORY,
    STALENESS_MEDIAN,
    STALENESS_TAIL,
    to_target,
)
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import FLEETS, Cell, Claim, Study
from fedraa.aggregation.low_rank import LowRank
from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.methods.depthfl import FirstBlocks
from fedraa.settings.terms import on_terms
from fedraa.submodels.personal_layers import BATCH_NORM

TARGETS = {"digits": 0.85, "mnist": 0.95}
TIME = to_target(TARGETS, "t")
ASYNCHRONOUS = ("fed-raa", "fedasync", "fedbuff")
COMPARED = (*ASYNCHRONOUS, "fedavg", "fedrolex", "ram-fed")


def _make_experiment(scale: Scale, method: str, **own: Any) -> Experiment:
    """Return an experiment that trains an MLP on digits or MNIST, with Dirichlet 0.5, 10 clients and a time limit."""
    common: dict[str, Any] = {"method": method, "partition": "dirichlet", "dirichlet": 0.5}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "time": 15.0, "lr": 0.05},
        *[{"dataset": "mnist", "hidden": (200,), "time": 60.0, "lr": 0.02, "batch_size": 128}] * 2,
    )
    if list_methods()[method].asynchronous:
        common["eval_every"] = scale.pick_value(2, 5, 5)
    return scale.experiment(**common | own)


def _methods_of_mlp() -> tuple[str, ...]:
    """Return the names of the methods that can train an MLP."""
    return tuple(name for name, method in list_methods().items() if not _needs_other_model(method))


def _needs_other_model(method: Method) -> bool:
    """Return True if a method needs a model with batch norm, low-rank adapters, or a classifier after each block."""
    if BATCH_NORM in method.local.personal_layers or isinstance(method.submodel, FirstBlocks):
        return True
    return isinstance(method.aggregator, LowRank)


def equal_budget(scale: Scale) -> Study:
    """Run all methods for the same time. Compare accuracy, peak memory, and the cost of reaching a target."""
    cells = [Cell(method, on_terms(_make_experiment(scale, method), "equal")) for method in _methods_of_mlp()]
    spent = (to_target(TARGETS, "bytes"), to_target(TARGETS, "flops"))
    return Study(
        "equal_budget",
        "All methods at equal time",
        cells,
        (ACCURACY, TIME, *spent, PEAK_MEMORY),
        reference="fedavg",
        notes=(
            "On equal terms, every method has the same learning rate, momentum 0, five local epochs, and equal "
            "weights of the clients in a round. The list below has the other differences between the methods. The "
            "study best_lr tunes the rate.",
            "The memory is the memory for training the largest submodel that the method may assign to a device. A "
            "masked submodel costs as much as the full model, because dense kernels also compute with masked weights.",
        ),
        along="t",
    )


def stragglers(scale: Scale) -> Study:
    """Compare methods on four fleets: speeds from 1 to 100, heavy-tailed durations, dropouts, daily off-times."""
    fleets: dict[str, dict[str, Any]] = {
        "1×": {"compute": "1:1"},
        "3×": {"compute": "1:0.5,3:0.5"},
        "10×": {"compute": "1:0.5,10:0.5"},
        "100×": {"compute": "1:0.5,100:0.5"},
        "log-normal, σ = 1": {"compute": "lognormal:1"},
        "zipf 1.5": {"compute": "zipf:1.5"},
        "dropouts": {"availability": FLEETS / "dropouts.csv"},
        "day and night": {"availability": FLEETS / "diurnal.csv", "availability_period": 5.0},
    }
    shorter: dict[str, Any] = scale.pick_value({"time": 10.0}, {}, {})
    chosen = scale.pick_value(("1×", "100×", "dropouts", "day and night"), tuple(fleets), tuple(fleets))
    cells = [
        Cell(method, _make_experiment(scale, method, **fleets[column], **shorter), column)
        for column, method in product(chosen, COMPARED)
    ]
    return Study(
        "stragglers",
        "Stragglers: a half of faster devices, and devices that leave",
        cells,
        (ACCURACY, TIME),
        reference="fedavg",
        notes=(
            "The slowest device has speed 1. With log-normal speeds the median device has speed 1, and with Zipf "
            "speeds the fastest device.",
            "Dropouts: every other device leaves permanently between the times 2 and 6, and a round that waits for "
            "such a device never ends. Day and night: a day lasts 5 time units, and every device is available for "
            "three fifths of it, each from another time on. A device continues its work when it returns. In both "
            "fleets (benchmarks/fleets) half of the devices have speed 1, and half 3.",
        ),
        along="t",
    )


def staleness(scale: Scale) -> Study:
    """Vary FedAsync's staleness weight, mixing weight and concurrency: accuracy and time to a target."""
    counts = scale.pick_value((5, 20), *[(5, 10, 20, 50)] * 2)
    mixings = scale.pick_value((0.3, 0.9), *[(0.1, 0.3, 0.6, 0.9)] * 2)
    cells = []
    for clients, weight, mixing in product(counts, ("constant", "polynomial", "hinge"), mixings):
        experiment = _make_experiment(scale, "fedasync", staleness=weight, mixing=mixing, clients=clients)
        cells.append(Cell(f"{weight}, α = {mixing:g}", experiment, f"{clients} clients"))
    return Study(
        "staleness",
        "Staleness weight, mixing and concurrency (FedAsync)",
        cells,
        (ACCURACY, TIME),
        reference="constant, α = 0.3",
        notes=("All clients are busy all the time, so the number of clients is the concurrency.",),
        seeds=scale.seeds,
        along="t",
    )


def networks(scale: Scale) -> Study:
    """Compare methods with small and full submodels on devices limited by compute or by bandwidth."""
    fleets = {name: str(FLEETS / f"{name}-bound.csv") for name in ("compute", "bandwidth")}
    longer: dict[str, dict[str, Any]] = {"compute": {}, "bandwidth": {"time": scale.pick_value(60.0, 240.0, 240.0)}}
    cells = [
        Cell(method, _make_experiment(scale, method, compute=path, **longer[name]), f"{name}-bound")
        for (name, path), method in product(fleets.items(), COMPARED)
    ]
    return Study(
        "networks",
        "Compute-bound and bandwidth-bound fleets",
        cells,
        (ACCURACY, TIME, to_target(TARGETS, "bytes")),
        reference="fedavg",
        notes=(
            "On the first fleet, sending the full model takes a tenth of the time of training it. On the second "
            "fleet, sending takes ten times as long as training. In both fleets half of the devices are three times "
            "as fast as the others. The fleets are benchmarks/fleets/*.csv.",
            "The bandwidth-bound runs have four times the time, which is enough for a small number of rounds.",
        ),
        seeds=scale.seeds,
        along="t",
    )


def schedulers(scale: Scale) -> Study:
    """Compare Gre-RAA with other schedulers: staleness, idle time, and fairness between fragments."""
    rows = {
        "gre-raa": "fed-raa",
        "random": "fed-raa-random",
        "minimum priority": "fed-raa-mp",
        "offline": "fed-raa-offline",
    }
    spreads = {"3×": "1:0.5,3:0.5", "10×": "1:0.5,10:0.5"}
    cells = [
        Cell(row, _make_experiment(scale, method, compute=spec, fragments=4), column)
        for (column, spec), (row, method) in product(spreads.items(), rows.items())
    ]
    return Study(
        "schedulers",
        "Schedulers of fragments, M = 4",
        cells,
        (STALENESS_TAIL, STALENESS_MEDIAN, IDLE, FAIRNESS, TIME, ACCURACY, CLIENT_WORST),
        reference="gre-raa",
        notes=(
            "Staleness counts all updates that the server applied while a client trained. Fairness is Jain's index of "
            "updates per fragment, 1 for equal numbers. No scheduler leaves a client without work in an asynchronous "
            "run, so that idle time depends only on the fleet.",
        ),
        claims=tuple(
            Claim("gre-raa", row, STALENESS_TAIL.name, f"Gre-RAA's tail staleness is under that of {row}")
            for row in ("random", "minimum priority")
        ),
        along="t",
    )


def best_lr(scale: Scale) -> Study:
    """Compare methods at their best learning rates on a grid, and at a common rate."""
    rates = scale.pick_value((0.01, 0.05, 0.2), *[(0.003, 0.01, 0.03, 0.1, 0.3)] * 2)
    sample = ("fed-raa", "fedasync", "fedavg", "scaffold", "fedsam", "ra-fed", "ram-fed", "subdismo")
    chosen = scale.pick_value(sample, sample, _methods_of_mlp())
    fixed = scale.pick_value(0.05, 0.1, 0.1)
    cells = []
    for rate, method in product(rates, chosen):
        column = f"lr {rate:g} (fixed)" if rate == fixed else f"lr {rate:g}"
        cells.append(Cell(method, on_terms(_make_experiment(scale, method, lr=rate), "equal"), column))
    return Study(
        "best_lr",
        "Each method at its best learning rate, at equal time",
        cells,
        (ACCURACY,),
        reference="fedavg",
        notes=(
            "The best rate of a method is chosen by the accuracies in this table, on the same seeds and test data. So "
            "the numbers are too high for all methods, and most of all for methods that depend strongly on their rate.",
        ),
        along="t",
        fixed=f"lr {fixed:g} (fixed)",
    )
