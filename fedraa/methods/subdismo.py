"""SubDisMO: random submodels with sharpness-aware steps (SubDisMO, Algorithm 1).

Round: the weights are split at random into four parts; client n trains some of the parts, which form its mask m_n
Client n: w <- w - lr * m_n * g(w + delta * m_n * g(w) / ||m_n * g(w)||)
Server:   each weight <- theta + server_lr * mean delta of the clients that trained it

Read next: submodels/policies/masked.py (`FourWay`), client/local_step.py (the perturbed gradient),
aggregation/coverage_mean.py (the mean).
"""

from dataclasses import replace

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.submodels.policies.masked import FourWay

register(
    Method(
        name="subdismo",
        paper="SubDisMO, Algorithm 1",
        formula="As ra-fed, with fedsam's gradient; in a round all clients share one random split into four parts.",
        when=(
            "Transformers on unequal devices. Masks choose single weights of encoder blocks, which saves traffic but "
            "no computing. With `submodel.form=blocks` a device skips whole blocks and saves both."
        ),
        submodel=FourWay(),
        local=replace(PLAIN_SGD, sam_rho=0.1),
        paper_settings=PaperSettings(
            source="SubDisMO, Section 5, CIFAR-10",
            values={"local.sam_rho": 0.1, "momentum": 0.0},
            unstated="both learning rates, local steps, batch size",
        ),
    )
)
