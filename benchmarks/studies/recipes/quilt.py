"""Studies of Fed-Quilt with its default values, and of variants that each lack one of its parts."""

from collections.abc import Mapping
from typing import Any

from benchmarks.studies.metrics import to_target
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study

TARGETS = {"digits": 0.95, "mnist": 0.975}
# Target accuracies by data set, for clients with different label distributions.
SKEWED = {"digits": 0.9, "mnist": 0.95}
# All variants train this number of minibatches between two evaluations.
BATCHES = 48
# The number of minibatches of a task in which a client trains on all of its data, by data set.
WHOLE_PASS = {"digits": 5, "mnist": 47}
# Fed-Quilt and its variants. A variant lacks one part of Fed-Quilt, or replaces it by a part of another method.
VARIANTS: dict[str, dict[str, Any]] = {
    "fed-quilt": {},
    "deltas added, no Muon steps": {"async_rule": "delta"},
    "deltas added, tasks of 15 steps": {"async_rule": "delta", "local_steps": 15},
    "tasks of 5 steps": {"local_steps": 5},
    "tasks of a whole pass": {"local_steps": None, "local_epochs": 1},
    "one fragment, the whole model": {"ratios": (1.0,)},
    "two fragments": {"ratios": (0.5, 0.5)},
    "fragments at random": {"scheduler": "random"},
    "the last model, not a mean": {"polyak_fraction": 0.0},
    "gradients as they are, not clipped": {"clip": 0.0},
    "logits as they are, not calibrated": {"local.logit_calibration": 0.0},
}


def quilt_parts(scale: Scale) -> Study:
    """Compare Fed-Quilt with variants that lack one of its parts or have a part of another method."""
    return _variants_study(scale, "quilt_parts", "Fed-Quilt without each of its parts", TARGETS, {})


def quilt_parts_skewed(scale: Scale) -> Study:
    """Repeat the study `quilt_parts` on clients with different label distributions."""
    title = "Fed-Quilt without each of its parts, Dirichlet 0.3"
    return _variants_study(scale, "quilt_parts_skewed", title, SKEWED, {"partition": "dirichlet", "dirichlet": 0.3})


def _variants_study(
    scale: Scale, name: str, title: str, targets: Mapping[str, float], data: Mapping[str, Any]
) -> Study:
    """Return a study of Fed-Quilt's VARIANTS.

    Args:
        scale: The size and the data.
        name: The study's name.
        title: The study's title.
        targets: The target accuracy by data set.
        data: The fields of the data partition.
    """
    common: dict[str, Any] = {"method": "fed-quilt", "compute": "1:0.5,3:0.5", **data}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "time": 2.0},
        *[{"dataset": "mnist", "hidden": (200,), "batch_size": 128, "time": 0.5}] * 2,
    )
    dataset = common["dataset"]
    common["target_accuracy"] = targets[dataset]
    cells = []
    for row, own in VARIANTS.items():
        # A task of Fed-Quilt has one local step. Without a number of steps, it is a whole pass.
        steps = own.get("local_steps", 1) or WHOLE_PASS[dataset]
        cells.append(Cell(row, scale.experiment(**common | own, eval_every=max(1, round(BATCHES / steps)))))
    return Study(
        name,
        title,
        cells,
        (to_target(targets, "t"),),
        reference="fed-quilt",
        notes=(
            "Runs end at the target. No variant is tuned: each has the default values of Fed-Quilt, except for the "
            "part that its name states.",
            "The learning rate adapts if tasks have at least two steps. With tasks of one step it is 0.2.",
        ),
        seeds=scale.seeds,
        along="t",
    )
