"""FedPer: the last layer stays at each client (Arivazhagan et al. 2019).

Client n keeps its head p_n and receives the body s:
    SGD on f_n(s, p) in s and p together, from (s, p_n)
    send s; keep p
Server:
    s <- mean of the clients' s, weighted by samples

Clients keep no statistics of batch norm: an evaluation estimates those of a personal model on its client's samples.

Read next: submodels/personal_layers.py (the choice of the layers), server/client_states.py (their values),
evaluation/personal.py (the personal models).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean
from fedraa.submodels.personal_layers import LAST

register(
    Method(
        name="fedper",
        paper="Arivazhagan et al. 2019",
        formula="As fedavg, but the last layer stays at each client, which trains it together with all other layers.",
        when="Each client has only a few of the labels, and every client needs a good model for its own samples.",
        local=LocalTraining(personal_layers=(LAST,)),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="release of FedRep",
            values={"lr": 0.01, "momentum": 0.5, "batch_size": 10, "weights": "samples"},
            client_fraction=0.1,
            unstated="local epochs",
        ),
    )
)
