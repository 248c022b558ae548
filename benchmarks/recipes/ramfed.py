"""Studies of "Resource-adaptive federated learning" (RA-Fed, RAM-Fed)."""

from typing import Any

from benchmarks.metrics import ACCURACY, CLIENT_WORST, LEAST_COVERAGE
from benchmarks.recipes.scale import Scale
from benchmarks.study import Cell, Claim, Study

OAP_NOTE = (
    "oap is the method as its paper defines it, 100, 75 and 50 % of the weights by magnitude, which trains more than "
    "level L does; oap (50 %) prunes for every client to half. Both keep what nobody covers, while the released "
    "code sets it to zero."
)


def ramfed_mnist(scale: Scale) -> Study:
    """RA-Fed, RAM-Fed and OAP on MNIST at equal rounds: RAM-Fed's Table 2, Dirichlet 0.1, L-Arb."""
    common: dict[str, Any] = {
        "hidden": (200,),
        "partition": "dirichlet",
        "dirichlet": 0.1,
        "local_steps": 5,
        "batch_size": 128,
        "lr": 0.01,
        "momentum": 0.5,
        "rounds": scale.pick(300, 2000),
        "eval_every": 10,
    }
    rows: dict[str, tuple[dict[str, Any], float | None]] = {
        "ram-fed": ({"method": "ram-fed", "mask_level": "L"}, 95.4),
        "ra-fed": ({"method": "ra-fed", "mask_level": "L"}, 92.8),
        "oap (50 %)": ({"method": "oap", "capacities": (0.5,)}, 84.9),
        "oap": ({"method": "oap"}, None),
        "fedavg (full)": ({"method": "fedavg"}, 94.2),
    }
    cells = [
        Cell(row, scale.experiment("mnist", **common, **own), paper={} if paper is None else {ACCURACY.name: paper})
        for row, (own, paper) in rows.items()
    ]
    return Study(
        "ramfed_mnist",
        f"MLP-200 on MNIST, 10 clients, Dirichlet 0.1, L-Arb, {common['rounds']} rounds (RAM-Fed, Table 2)",
        cells,
        (ACCURACY, CLIENT_WORST, LEAST_COVERAGE),
        reference="ram-fed",
        notes=(f"The paper does not state its rounds; {common['rounds']} are run here.", OAP_NOTE),
        claims=(
            Claim("ram-fed", "ra-fed", ACCURACY.name, "RAM-Fed at least RA-Fed"),
            Claim("ra-fed", "oap (50 %)", ACCURACY.name, "RA-Fed at least OAP at level L"),
            Claim("ra-fed", "oap", ACCURACY.name, "RA-Fed at least OAP as defined"),
        ),
    )
