"""LG-FedAvg: the body stays at each client, and the head is shared (Liang et al. 2020).

Client n keeps its body p_n and receives the head s:
    SGD on f_n(p, s) in p and s together, from (p_n, s)
    send s; keep p
Server:
    s <- mean of the clients' s, weighted by samples

The authors' code keeps the model with the best test accuracy of each client. This implementation keeps the last model.

Read next: methods/fedper.py (the opposite choice of layers).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean
from fedraa.submodels.personal_layers import ALL_BUT_LAST

register(
    Method(
        name="lg-fedavg",
        paper="Liang et al. 2020",
        note="starts from the initial model; in the paper, from a model that fedavg has trained",
        formula="As fedavg for the last layer only; all other layers stay at each client.",
        when="Links are slow and the inputs of clients differ: clients send only the last layer.",
        local=LocalTraining(personal_layers=(ALL_BUT_LAST,)),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10, which shares the last two layers",
            values={"lr": 0.1, "momentum": 0.5, "local_epochs": 1, "batch_size": 50, "weights": "uniform"},
            client_fraction=0.1,
        ),
    )
)
