"""IST, independent subnet training: each client of a round trains its own group of hidden units (Yuan et al. 2022).

Round, with a cohort of C clients:
    shuffle the units of every hidden layer and deal them to the clients in C equal groups
    client k trains its group, with activations times C and the learning rate divided by C
        (unless `submodel.scaled=False`)
    write the trained groups back; parameters that all clients hold become their mean

Read next: submodels/policies/slices.py (`DisjointGroups`), aggregation/coverage_mean.py (the mean).
"""

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.submodels.policies.slices import DisjointGroups

register(
    Method(
        name="ist",
        paper="Yuan et al. 2022",
        formula=(
            "Each round, hidden units are dealt to the cohort in disjoint groups, trained with activations scaled by "
            "the cohort's size, and written back."
        ),
        when="Few clients, each too small for the whole model. The traffic of a round is about one model.",
        submodel=DisjointGroups(),
        paper_settings=PaperSettings(source="authors' code", values={"lr": 0.01, "local_steps": 20, "batch_size": 128}),
    )
)
