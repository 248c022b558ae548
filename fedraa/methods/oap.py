"""OAP: each client trains the largest weights of the model, up to its capacity (Zhou et al. 2024).

Client n, with capacity r_n: trains, in every tensor, the share r_n of the weights with the largest absolute values
Server: each weight <- mean of the clients that trained it; a weight that no client trained stays

Read next: submodels/policies/masked.py (`Pruned`), aggregation/coverage_mean.py (the mean).
"""

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.submodels.policies.masked import Pruned

register(
    Method(
        name="oap",
        paper="Zhou et al. 2024",
        note="weights are ranked exactly by magnitude; a weight that no client trained keeps its value",
        formula=(
            "Each client trains the largest weights of the model, up to its capacity; each weight becomes the mean of "
            "the clients that trained it."
        ),
        when="Unequal devices that should train the currently most important weights.",
        submodel=Pruned(),
        paper_settings=PaperSettings(
            source="Zhou et al. 2024", values={"capacities": (1.0, 0.75, 0.5)}, unstated="learning rate, batch size"
        ),
    )
)
