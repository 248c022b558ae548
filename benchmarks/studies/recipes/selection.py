"""A study of client selection on devices with log-normal speeds."""

from typing import Any

from benchmarks.studies.metrics import ACCURACY, CLIENT_WORST, to_target
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study

CHOSEN = 5
UNIFORM = "uniform"
SELECTIONS: dict[str, dict[str, Any]] = {
    UNIFORM: {"participation": f"sample:{CHOSEN}"},
    "uniform, 1.3 × as many": {"participation": f"sample:{CHOSEN}", "over_selection": 1.3},
    "power-of-choice": {"participation": f"power-of-choice:{CHOSEN}"},
    "Oort": {"participation": f"oort:{CHOSEN}"},
    "Oort, 1.3 × as many": {"participation": f"oort:{CHOSEN}", "over_selection": 1.3},
    "TiFL": {"participation": f"tifl:{CHOSEN}"},
}
TARGETS = {"digits": 0.85, "mnist": 0.9}


def selection_lognormal(scale: Scale) -> Study:
    """Compare client selections on devices with log-normal speeds: time and traffic to a target."""
    common: dict[str, Any] = {"method": "fedavg", "weights": "uniform", "lr": 0.05, "compute": "lognormal:1"}
    common |= {"partition": "dirichlet", "dirichlet": 0.5, "local_steps": 10, "batch_size": 32}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "clients": 20, "rounds": 40, "eval_every": 2},
        {"dataset": "mnist", "hidden": (64,), "clients": 50, "rounds": 150, "eval_every": 5},
        {"dataset": "mnist", "hidden": (200,), "clients": 100, "rounds": 300, "eval_every": 5},
    )
    cells = [Cell(row, scale.experiment(**common | fields)) for row, fields in SELECTIONS.items()]
    return Study(
        "selection_lognormal",
        "Selections of clients on devices with log-normal speeds",
        cells,
        (ACCURACY, to_target(TARGETS, "t"), to_target(TARGETS, "bytes"), CLIENT_WORST),
        reference=UNIFORM,
        notes=(
            f"{CHOSEN} clients count in each round. The speeds are exp(z) with a standard normal z, and the labels are "
            "split by Dirichlet 0.5. All runs have the same number of rounds.",
            "The traffic includes the models that were sent to clients whose updates came too late.",
        ),
    )
