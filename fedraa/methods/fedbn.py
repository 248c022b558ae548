"""FedBN: scale and shift of batch norm stay at each client (Li et al. 2021).

Client n keeps the parameters b_n of its batch norms and receives all others, s:
    SGD on f_n(s, b) in s and b together, from (s, b_n)
    send s; keep b
Server:
    s <- mean of the clients' s, with equal weights

Layers of batch norm are found by their type, not by their name. A model without batch norm is refused, because fedavg
trains it in the same way. In the paper, clients also keep running means and variances. Here, running statistics are
estimated before each evaluation: for a personal model on the training samples of its client, and for the global model
on the training samples of all clients.

Read next: submodels/personal_layers.py (the choice of the layers), models/statistics.py (the statistics).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean
from fedraa.submodels.personal_layers import BATCH_NORM

register(
    Method(
        name="fedbn",
        paper="Li, Jiang et al. 2021",
        note="running statistics are not kept: they are estimated on the client's samples before an evaluation",
        formula="As fedavg, without the parameters of batch norm, which stay at each client.",
        when="The inputs of clients differ by their devices or sites, and the model has batch norm.",
        local=LocalTraining(personal_layers=(BATCH_NORM,)),
        update=Mean(),
        paper_settings=PaperSettings(
            source="authors' code, digits",
            values={"lr": 0.01, "momentum": 0.0, "local_epochs": 1, "batch_size": 32, "weights": "uniform"},
        ),
    )
)
