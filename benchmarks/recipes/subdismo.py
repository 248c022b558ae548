"""Studies of "Resource-aware distributed minimax optimization" (SubDisMO)."""

from typing import Any

from benchmarks.metrics import CLIENT_MEAN, CLIENT_STD
from benchmarks.recipes.scale import Scale
from benchmarks.study import Cell, Claim, Study

OPEN = "The paper states no learning rate, batch size, local steps nor rounds; lr 0.1, batches of 32 are taken."
SUBSET = "The data are a subset of CIFAR-10: 10,000 training and 2,000 test images."


def _paper(accuracy: float, deviation: float) -> dict[str, float]:
    return {CLIENT_MEAN.name: accuracy, CLIENT_STD.name: deviation}


def subdismo_delta(scale: Scale) -> Study:
    """SubDisMO against delta = 0 and RAM-Fed on CIFAR-10: client accuracy and deviation beside Table 1."""
    dataset, model, rounds = scale.pick(("cifar10-subset", "cnn", 150), ("cifar10", "vit-small", 1000))
    common: dict[str, Any] = {
        "model": model,
        "partition": "dirichlet",
        "dirichlet": 0.5,
        "local_steps": scale.pick(5, 10),
        "batch_size": 32,
        "lr": 0.1,
        "momentum": 0.0,
        "rounds": rounds,
        "eval_every": 10,
    }
    rows: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
        "subdismo δ=0.1": ({"method": "subdismo"}, _paper(48.50, 8.47)),
        "subdismo δ=0": ({"method": "subdismo", "sam": 0.0}, {}),
        "ram-fed": ({"method": "ram-fed"}, _paper(43.31, 11.49)),
    }
    cells = [Cell(row, scale.experiment(dataset, **common, **own), paper=paper) for row, (own, paper) in rows.items()]
    small = f"A small CNN stands in for the paper's ViT-Small, whose numbers are in brackets. {SUBSET}"
    return Study(
        "subdismo_delta",
        f"{model} on {dataset}, 10 clients, Dirichlet 0.5, {rounds} rounds (SubDisMO, Table 1)",
        cells,
        (CLIENT_MEAN, CLIENT_STD),
        reference="subdismo δ=0.1",
        notes=(OPEN, *scale.pick((small,), ())),
        claims=(
            Claim("subdismo δ=0.1", "subdismo δ=0", CLIENT_MEAN.name, "δ = 0.1 is more accurate than δ = 0"),
            Claim("subdismo δ=0.1", "subdismo δ=0", CLIENT_STD.name, "δ = 0.1 deviates less than δ = 0"),
        ),
    )
