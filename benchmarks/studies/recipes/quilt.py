"""Studies of Fed-Quilt and of variants that each lack one of its parts, at several learning rates."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from benchmarks.studies.metrics import to_target
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study

TARGETS = {"digits": 0.95, "mnist": 0.975}
# Target accuracies by data set, for clients with different label distributions.
SKEWED = {"digits": 0.9, "mnist": 0.95}
RATES = (0.2, 0.4, 0.8)
FIXED = 0.4
SHARED = f"lr {FIXED:g} (fixed)"
# Fed-Quilt and its variants. A variant lacks one part of Fed-Quilt, or replaces it by a part of another method.
VARIANTS: dict[str, dict[str, Any]] = {
    "fed-quilt": {},
    "models mixed, not deltas added": {"async_rule": "convex-mix", "mixing": 0.6},
    "one fragment, the whole model": {"ratios": (1.0,)},
    "tasks of a whole pass": {"local_steps": None, "local_epochs": 1},
    "fragments at random": {"scheduler": "random"},
    "the last model, not a mean": {"polyak_fraction": 0.0},
    "a rate of its own per fragment": {"local.full_rate": False},
    "gradients as they are, not clipped": {"clip": 0.0},
    "logits as they are, not calibrated": {"local.logit_calibration": 0.0},
    "data weighed against speed": {"update.participation_correction": 0.5},
    "fragments planned for the fleet": {"ratios": (0.125, 0.125, 0.375, 0.375), "scheduler": "gre-raa"},
}


def quilt_parts(scale: Scale) -> Study:
    """Compare Fed-Quilt with variants that lack one of its parts or have a part of another method."""
    return _variants_study(scale, "quilt_parts", "Fed-Quilt without each of its parts", TARGETS, {}, time=1.5)


def quilt_parts_skewed(scale: Scale) -> Study:
    """Repeat the study `quilt_parts` on clients with different label distributions."""
    title = "Fed-Quilt without each of its parts, Dirichlet 0.3"
    return _variants_study(
        scale, "quilt_parts_skewed", title, SKEWED, {"partition": "dirichlet", "dirichlet": 0.3}, time=0.75
    )


def _variants_study(
    scale: Scale, name: str, title: str, targets: Mapping[str, float], data: Mapping[str, Any], *, time: float
) -> Study:
    """Return a study of Fed-Quilt's VARIANTS at several learning rates.

    Args:
        scale: The size and the data.
        name: The study's name.
        title: The study's title.
        targets: The target accuracy by data set.
        data: The fields of the data partition.
        time: The time limit at the sizes `standard` and `paper`.
    """
    common: dict[str, Any] = {"method": "fed-quilt", "compute": "1:0.5,3:0.5", **data}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "time": 4.0, "eval_every": 1},
        *[{"dataset": "mnist", "hidden": (200,), "batch_size": 128, "time": time, "eval_every": 5}] * 2,
    )
    common["target_accuracy"] = targets[common["dataset"]]
    columns = {rate: f"lr {rate:g}" for rate in RATES} | {FIXED: SHARED}
    cells = [
        Cell(row, scale.experiment(**common | own, lr=rate), columns[rate])
        for rate, (row, own) in product(RATES, VARIANTS.items())
    ]
    return Study(
        name,
        title,
        cells,
        (to_target(targets, "t"),),
        reference="fed-quilt",
        notes=(
            "Runs end at the target. For every row, the best rate is chosen by the times in this table, on the same "
            "seeds.",
            "Fragments planned for the fleet are two small ones and two of three times their size, like the devices, "
            "assigned by Gre-RAA: all tasks then take about the same time.",
        ),
        seeds=scale.seeds,
        along="t",
        fixed=SHARED,
    )
