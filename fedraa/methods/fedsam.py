"""FedSAM and MoFedSAM: sharpness-aware local steps (FedSAM, Algorithms 1 and 2).

Client, each step:
    w~ = w + rho * g(w) / ||g(w)||                          # the worst point nearby
    FedSAM:    w <- w - lr * g(w~)
    MoFedSAM:  w <- w - lr * (beta * g(w~) + (1 - beta) * D)
Server:
    theta <- theta + server_lr * mean delta
    MoFedSAM:  D <- -mean delta / (lr * T)                  # T local steps

In the paper's Algorithm 2 the server steps by -eta_g * D, so that server_lr is eta_g / (lr * T). For its default
eta_g = 1, public code has server_lr = 1, as here.

Read next: client/local_step.py (the perturbed gradient), methods/fedcm.py (D), methods/fedavg.py (the round).
"""

from dataclasses import replace

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedcm import GlobalMomentum
from fedraa.server.round_update import Mean

_PAPER = PaperSettings(
    source="FedSAM, Section 5.1, CIFAR-10",
    values={
        "lr": 0.1,
        "momentum": 0.0,
        "local_epochs": 10,
        "batch_size": 128,
        "participation": "bernoulli:0.2",
        "local.sam_rho": 0.5,
        "weights": "uniform",
        "server_lr": 1.0,
    },
)

register(
    Method(
        name="fedsam",
        paper="FedSAM, Algorithm 1",
        formula="Clients take the gradient at w + sam_rho · g / |g|; the server takes the mean.",
        when="Unequal data lead to sharp minima; this method looks for a flatter one. A step costs two gradients.",
        local=replace(PLAIN_SGD, sam_rho=0.5),
        paper_settings=_PAPER,
    )
)
register(
    Method(
        name="mofedsam",
        paper="FedSAM, Algorithm 2",
        formula="The gradient of fedsam, blended with the mean direction of the last round, as in fedcm.",
        when="As fedsam, if clients should also follow the common direction.",
        local=replace(PLAIN_SGD, sam_rho=0.5, grad_mix=0.1),
        update=Mean(auxiliary=GlobalMomentum()),
        paper_settings=replace(_PAPER, values={**_PAPER.values, "local.grad_mix": 0.1}),
    )
)
