"""PruneFL: one sparse model for all clients, with an adaptive mask (Jiang et al. 2022).

In the first rounds only one client trains, to find the first mask. In all later rounds:
    theta <- mean of the cohort's models, on the mask
    every `reprune_every` rounds: a new mask, by the importance of each weight. The importance is the sum of squared
        gradients, divided by the number of times that the forward pass of a sample uses the weight.

Read next: submodels/policies/pruning.py (the mask), methods/fedavg.py (the round).
"""

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.pruning import AdaptivePruning

register(
    Method(
        name="prunefl",
        paper="Jiang et al. 2022",
        note="the density of the mask is fixed, as in papers that use PruneFL as a baseline",
        formula=(
            "As fedavg, with one mask for all clients. A single client finds the first mask; every reprune_every "
            "rounds a new mask is chosen by the squared gradients of each weight."
        ),
        when="All devices are equally small: one sparse model for all.",
        submodel=AdaptivePruning(),
        local=PLAIN_SGD,
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10",
            values={
                "lr": 0.1,
                # The rate halves every 10,000 rounds.
                "lr_schedule": "exponential:0.99993069",
                "momentum": 0.0,
                "local_steps": 5,
                "batch_size": 20,
                "submodel.reprune_every": 50,
                "weights": "samples",
            },
        ),
    )
)
