"""FedAvgM and FedOpt: an optimizer at the server steps along the mean delta of a round.

FedAvgM (Hsu, Qi, Brown 2019):           m <- beta * m + delta;  theta <- theta + server_lr * m
FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021, Algorithm 2):
    m <- b1 * m + (1 - b1) * delta
    v <- b2 * v + (1 - b2) * delta^2                        # Adam
    v <- v - (1 - b2) * delta^2 * sign(v - delta^2)         # Yogi
    v <- v + delta^2                                        # Adagrad
    theta <- theta + server_lr * m / (sqrt(v) + tau)

Read next: server/optimizers.py (these steps), server/round_server.py (their caller).
"""

from dataclasses import replace

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.optimizers import Adaptive, Momentum
from fedraa.server.round_update import Mean

_REDDI = PaperSettings(
    source="Reddi et al. 2021",
    values={"momentum": 0.0},
    unstated="the learning rates, which the paper takes from a grid",
)

register(
    Method(
        name="fedavgm",
        paper="Hsu, Qi, Brown 2019",
        formula="`m ← beta m + mean delta; theta ← theta + server_lr · m`.",
        when="Unequal data make rounds noisy: momentum at the server smooths them.",
        update=Mean(weights="samples", optimizer=Momentum()),
        paper_settings=PaperSettings(
            source="Hsu, Qi, Brown 2019", unstated="the learning rates, which the paper takes from a grid"
        ),
    )
)
register(
    Method(
        name="fedadam",
        paper="Reddi et al. 2021",
        formula=(
            "`m ← b1 m + (1 − b1) delta; v ← b2 v + (1 − b2) delta²; theta ← theta + server_lr · m / (√v + tau)`."
        ),
        when="Coordinates need steps of very different length. The length server_lr of a step must be tuned.",
        update=Mean(optimizer=Adaptive("adam")),
        paper_settings=_REDDI,
    )
)
register(
    Method(
        name="fedyogi",
        paper="Reddi et al. 2021",
        formula="As fedadam; v changes by (1 − b2) delta² · sign(delta² − v).",
        when="As fedadam, if its steps become too long when gradients get small.",
        update=Mean(optimizer=Adaptive("yogi")),
        paper_settings=_REDDI,
    )
)
register(
    Method(
        name="fedadagrad",
        paper="Reddi et al. 2021",
        note="beta1 is 0.9 by default; the paper's experiments have no momentum at the server",
        formula="As fedadam; v ← v + delta².",
        when="As fedadam, with steps that only get shorter.",
        update=Mean(optimizer=Adaptive("adagrad")),
        # In appendix D, the server of FedAdagrad has no momentum.
        paper_settings=replace(_REDDI, values={**_REDDI.values, "update.optimizer.beta1": 0.0}),
    )
)
