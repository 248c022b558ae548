"""SALF: clients back-propagate from the last layer until the deadline (Lang, Cohen, Shlezinger 2024, arXiv 2403.18375).

Client n, with capacity r_n, from theta:
    whole forward pass, then backward pass over the last l_n layers, as many as the share r_n of the work allows
    all other layers keep their received values
Server, for each layer: theta <- mean of w_n over all clients of the round   # w_n has old values in unreached layers

With the aggregator `covered`, the mean is only over the clients that trained the layer. The code of the paper draws l_n
from a Poisson distribution with the deadline as its mean. Here l_n follows from the client's device (capacities auto),
from shares that the user sets, or from random shares (`submodel.capacities.redraw`). ADEL-FL (arXiv 2505.23973) also
optimises deadlines and batch sizes, which is not implemented here.

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
        note="the number of layers follows from --capacities, not from a Poisson distribution; fixed deadlines",
        formula="Each layer becomes the mean over all clients; the old value counts for clients that did not reach it.",
        when=(
            "Slow devices that can hold and evaluate the whole model, but not train all of its layers in time. With "
            "`--capacities auto`, the number of layers follows from the speed of the device."
        ),
        submodel=LastLayers(),
        local=PLAIN_SGD,
        update=Mean(aggregator=FilledMean()),
        paper_settings=PaperSettings(
            source="first author's code of ADEL-FL",
            values={"lr": 0.1, "momentum": 0.5, "batch_size": 16, "weights": "uniform"},
            unstated="local epochs, and the speed of devices",
        ),
    )
)
register(async_variant(SALF))
