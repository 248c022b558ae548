"""SALF: clients back-propagate from the last layer until the deadline (Lang, Cohen, Shlezinger 2024, arXiv 2403.18375).

Client n, with capacity r_n, from theta:
    whole forward pass, and backward pass over the last l_n layers: as many as the share r_n of the work allows
    all other layers keep their received values
Server, for each layer: theta <- mean of w_n over all clients of the round   # old values of layers that n did not reach

`aggregator` covered is the mean over the clients that trained a layer. The code of the paper draws l_n from a Poisson
distribution with the deadline as its mean; here l_n follows from the client's device (capacities auto), from given
shares, or from random shares (`submodel.capacities.redraw`). ADEL-FL (arXiv 2505.23973) adds deadlines and batch sizes
that minimise a bound; we have not found its batch sizes, and its code has placeholders, so neither is here.

Read next: submodels/policies/last_layers.py (the layers of a client), aggregation/coverage_mean.py (both means).
"""

from fedraa.aggregation.coverage_mean import FilledMean
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedasync import async_variant
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.last_layers import LastLayers

SALF = register(
    Method(
        name="salf",
        paper="arXiv 2403.18375",
        note="layers by the speed of the device, not by a Poisson distribution; without ADEL-FL's deadlines",
        formula="Each layer becomes the mean over all clients; those that did not reach it count with its old value.",
        when="Slow devices that can hold and evaluate the whole model, but not train all of its layers in time.",
        submodel=LastLayers(),
        local=PLAIN_SGD,
        update=Mean(aggregator=FilledMean()),
        paper_settings=PaperSettings(
            source="first author's code of ADEL-FL",
            values={"lr": 0.1, "momentum": 0.5, "batch_size": 16, "weights": "uniform"},
            unstated="local epochs, and the rate of devices",
        ),
    )
)
register(async_variant(SALF))
