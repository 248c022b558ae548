"""Fed-RAA: fragments of the model, trained asynchronously by devices of unequal strength (Fed-RAA, Algorithms 1 and 2).

The model is cut into M fragments theta_1 ... theta_M. Each hidden unit is in one fragment. Parameters without a hidden
unit, such as the biases of the output layer, are in every fragment, so that every update changes them.

K is the delay bound: the longest task if the fastest clients train the largest fragment, the next clients the next
largest, and so on (Theorem 2; docs/concepts/delay-bound.md).
When client n is idle (Gre-RAA, Algorithm 2):
    S = {j : cost[n, j] <= 1.01 * K}                # fragments that n can hold and train within the delay bound
    j = argmin over S of q[j]                       # the fragment with the fewest updates, ties at random
    send theta_j; remember q_sent = q[j]
Client n: E epochs of SGD on f_n(w) + rho/2 * ||w - theta_j||^2
When (j, w) arrives:
    a = mixing * s(q[j] - q_sent)                   # mixing is 0.6 and s is 1, unless the options set others
    theta_j <- (1 - a) * theta_j + a * w
    q[j] += 1

From scratch: examples/fed_raa_from_scratch.py.

Read next: methods/fedasync.py (the update rule and its server), schedulers/scheduler_runner.py (the set S),
schedulers/greedy.py (the choice of j), schedulers/bound.py (K).
"""

from dataclasses import replace

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedasync import ConvexMix
from fedraa.server.optimizers import Sgd
from fedraa.server.round_update import Mean
from fedraa.server.schedule import AsyncSchedule, ScheduledRounds
from fedraa.submodels.policies.slices import DEFAULT_FRAGMENTS, FRAGMENT_RATIOS, Fragments

FED_RAA = register(
    Method(
        name="fed-raa",
        paper="Fed-RAA, Algorithm 1",
        formula=(
            "`theta_j ← (1 − a) theta_j + a w`, with a = mixing · s(staleness), for the fragment j of the update. "
            "Gre-RAA sends an idle device the fragment with the fewest updates among those that it can train within "
            "the delay bound."
        ),
        when="Devices are unequal, and some cannot hold the whole model or train it in time.",
        submodel=Fragments(FRAGMENT_RATIOS[DEFAULT_FRAGMENTS]),
        local=LocalTraining(prox_mu=0.005),
        update=ConvexMix(),
        schedule=AsyncSchedule(scheduler="gre-raa"),
        paper_settings=PaperSettings(
            source="Fed-RAA, Appendix C.1, MNIST and CIFAR-10",
            values={"lr": 0.005, "momentum": 0.5, "local_epochs": 5, "batch_size": 128},
            unstated="mixing, staleness weight, proximal weight, fragments of the main tables",
        ),
    )
)

register(
    replace(
        FED_RAA,
        name="fed-raa-random",
        variant_of="fed-raa",
        formula="As fed-raa. The scheduler draws the fragment uniformly from all that the device can hold.",
        when="To measure the effect of the scheduler of fed-raa.",
        schedule=AsyncSchedule(scheduler="random"),
    )
)
register(
    replace(
        FED_RAA,
        name="fed-raa-mp",
        variant_of="fed-raa",
        formula="As fed-raa. The scheduler sends the fragment with the fewest updates, without a delay bound.",
        when="To measure the effect of the delay bound of fed-raa: slow devices also get large fragments.",
        schedule=AsyncSchedule(scheduler="minimum-priority"),
    )
)
register(
    replace(
        FED_RAA,
        name="fed-raa-offline",
        variant_of="fed-raa",
        formula="As fed-raa. Every client has fixed fragments; fast clients have the large ones.",
        when="To measure the effect of choosing a fragment for every task instead of once.",
        schedule=AsyncSchedule(scheduler="offline"),
    )
)
register(
    replace(
        FED_RAA,
        name="fed-raa-sync",
        variant_of="fed-raa",
        formula="`theta_j ← (1 − server_lr) theta_j + server_lr · mean of the round's updates of j`, in rounds.",
        when="To measure the effect of training without rounds.",
        update=Mean(optimizer=Sgd(server_lr=0.6)),
        schedule=ScheduledRounds(),
    )
)
