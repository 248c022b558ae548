"""FedProx: FedAvg with a proximal term that holds clients near the received model (Li et al. 2020, Algorithm 2).

Client n: SGD on f_n(w) + mu/2 * ||w - theta||^2
Server:   theta <- mean of the cohort's models, weighted by samples

The paper draws clients in proportion to their samples and takes the plain mean. The authors' code weights the mean, as
here. In the paper slow clients also train fewer epochs; here the option `late=partial` shortens tasks at a deadline.

Read next: client/gradient_transforms.py (the proximal term), methods/fedavg.py (the round).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean

register(
    Method(
        name="fedprox",
        paper="Li et al. 2020",
        formula="As fedavg; clients add (prox_mu / 2) |w − theta|² to their loss.",
        when="Unequal data and long local training: the term holds clients near the model that they received.",
        local=LocalTraining(prox_mu=0.1),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' script",
            values={"lr": 0.01, "momentum": 0.0, "local_epochs": 20, "batch_size": 10, "weights": "samples"},
            unstated="the choice of the proximal weight from .001, .01, .1 and 1",
        ),
    )
)
