"""A study of central differential privacy at epsilon 8."""

from typing import Any

from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study

CLIENTS = 100
JOIN_PROBABILITY = 0.2
# The noise multiplier by number of rounds. `fedraa plan --epsilon 8` computes it for delta = 100^-1.1.
NOISE_OF_ROUNDS = {20: 0.64, 60: 0.882}
WITHOUT = "without privacy"
NOTES = (
    f"{CLIENTS} clients join each round independently with probability {JOIN_PROBABILITY:g}. Delta is 100^-1.1.",
    "The noise is that of `fedraa plan --epsilon 8`. The first clip is 0.5.",
)


def privacy_central(scale: Scale) -> Study:
    """Compare FedAvg with and without central differential privacy at epsilon 8."""
    common: dict[str, Any] = {"method": "fedavg", "weights": "uniform", "clients": CLIENTS, "lr": 0.1}
    common |= {"participation": f"poisson:{JOIN_PROBABILITY}", "local_steps": 5, "batch_size": 32}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (32,), "rounds": 20, "eval_every": 20},
        {"dataset": "mnist", "hidden": (64,), "rounds": 60, "eval_every": 20},
        {"dataset": "mnist", "hidden": (64,), "rounds": 60, "eval_every": 20},
    )
    noise = NOISE_OF_ROUNDS[common["rounds"]]
    rows = {
        WITHOUT: None,
        "fixed clip": f"central(noise={noise}, clip=0.5)",
        "adaptive clip": f"central-adaptive(noise={noise}, clip=0.5)",
    }
    cells = [Cell(row, scale.experiment(**common, privacy=privacy)) for row, privacy in rows.items()]
    return Study("privacy_central", "Central privacy at epsilon 8", cells, (ACCURACY,), reference=WITHOUT, notes=NOTES)
