"""FedRobust: clients train against an affine perturbation of their inputs (Reisizadeh et al. 2020).

Client n: minimises over w and maximises over (Lambda_n, delta_n) the loss on Lambda_n * x + delta_n;
    Lambda_n (here diagonal) and delta_n stay with the client from round to round
Server:   theta <- mean of the cohort's models

Read next: client/input_adversary.py (the perturbation), client/kept_buffer.py (the values that a client keeps).
"""

from dataclasses import replace

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean

register(
    Method(
        name="fedrobust",
        paper="Reisizadeh et al. 2020",
        note="diagonal affine perturbation",
        formula=(
            "Clients minimise the loss over the weights and maximise it over an affine change x → L x + d of their "
            "inputs. L and d stay at each client; the server takes the mean."
        ),
        when="The inputs of clients differ in light, gain or offset, because their devices differ. Not for tokens.",
        local=replace(PLAIN_SGD, adversary=True),
        update=Mean(),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10", values={"lr": 1e-3, "momentum": 0.0, "batch_size": 50}
        ),
    )
)
