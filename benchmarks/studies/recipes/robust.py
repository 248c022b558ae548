"""Studies of robust aggregators. 20 % of the clients are attackers."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from benchmarks.studies.metrics import ACCURACY, PERCENT, Metric, read_last
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study

CLIENTS = 20
# Bulyan needs 4 f + 3 clients for f attackers, so 20 clients allow 4 attackers.
ATTACKERS = 4
MEAN = "mean"
AGGREGATORS: dict[str, str | None] = {
    MEAN: None,
    "median": "median",
    "trimmed mean": "trimmed-mean(trim=0.2)",
    "Krum": f"krum(attackers={ATTACKERS})",
    "Multi-Krum": f"multi-krum(attackers={ATTACKERS})",
    "Bulyan": f"bulyan(attackers={ATTACKERS})",
    "geometric median": "geometric-median",
    "centred clipping": "centred-clipping(radius=1.0)",
    "norm bound": "norm-bound(max_norm=1.0)",
}
NONE = "no attack"
ATTACKS = {
    NONE: None,
    "sign flip": "sign-flip(scale=4.0)",
    "scaling": "scaling(scale=10.0)",
    "noise": "gaussian(std=0.1)",
    "ALIE, z = 1.5": "alie(z=1.5)",
    "IPM, epsilon = 0.5": "ipm(epsilon=0.5)",
    "label flip": "label-flip",
}
ALIE_ROWS = (MEAN, "median", "trimmed mean", "Krum", "Multi-Krum")
ALIE_COLUMNS = {NONE: None, "ALIE, z = 1.5": "alie(z=1.5)", "ALIE, z of the paper": "alie(z=None)"}
BACKDOOR = {"backdoor": "backdoor(target=0, share=0.5, scale=5.0)"}
NOTES = (
    f"{ATTACKERS} of {CLIENTS} clients attack, drawn by the seed. The labels are split by Dirichlet 0.5.",
    "Krum, Multi-Krum and Bulyan know the number of attackers, and the trimmed mean their share.",
    "The paper's z for 4 attackers of 20 clients is 0.16, almost no attack; the authors' command has 1.5.",
)


def robust_alie(scale: Scale) -> Study:
    """Compare median, trimmed mean, Krum and Multi-Krum under the attack ALIE."""
    rows = {row: AGGREGATORS[row] for row in ALIE_ROWS}
    return _robust_study(scale, "robust_alie", "Robust aggregators under ALIE", rows, ALIE_COLUMNS, (ACCURACY,))


def robust_attacks(scale: Scale) -> Study:
    """Compare all robust aggregators under all attacks."""
    title = "Robust aggregators under attacks"
    return _robust_study(scale, "robust_attacks", title, AGGREGATORS, ATTACKS, (ACCURACY,))


def robust_backdoor(scale: Scale) -> Study:
    """Compare robust aggregators under a backdoor: the accuracy and the backdoor's success rate."""
    title = "Robust aggregators under a backdoor"
    return _robust_study(scale, "robust_backdoor", title, AGGREGATORS, BACKDOOR, (ACCURACY, ATTACK_SUCCESS))


def _robust_study(
    scale: Scale,
    name: str,
    title: str,
    aggregators: Mapping[str, str | None],
    attacks: Mapping[str, str | None],
    metrics: tuple[Metric, ...],
) -> Study:
    common: dict[str, Any] = {"method": "fedavg", "weights": "uniform", "clients": CLIENTS, "lr": 0.1}
    common |= {"partition": "dirichlet", "dirichlet": 0.5, "local_steps": 5, "batch_size": 32}
    common |= scale.pick_value(
        {"dataset": "digits", "hidden": (64,), "rounds": 20, "eval_every": 20},
        {"dataset": "mnist", "hidden": (64,), "rounds": 30, "eval_every": 10},
        {"dataset": "mnist", "hidden": (200,), "rounds": 200, "eval_every": 20},
    )
    cells = []
    for (column, attack), (row, aggregator) in product(attacks.items(), aggregators.items()):
        fields = dict(common)
        if aggregator is not None:
            fields["aggregator"] = aggregator
        if attack is not None:
            fields |= {"attack": attack, "attackers": ATTACKERS / CLIENTS}
        cells.append(Cell(row, scale.experiment(**fields), column))
    return Study(name, title, cells, metrics, reference=MEAN, notes=NOTES)


ATTACK_SUCCESS = Metric("backdoor success %", read_last("attack_success", 100), "less", within=PERCENT)
