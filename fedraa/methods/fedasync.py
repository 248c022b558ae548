"""FedAsync: mix every client's model into the global model at once (Xie, Koyejo, Gupta 2019, Algorithm 1).

Every idle client receives the model theta. Client n: SGD on f_n(w) + rho/2 * ||w - theta||^2
When w arrives with staleness k:
    a = mixing * s(k)
    theta <- (1 - a) * theta + a * w

Read next: server/staleness.py (s), server/async_server.py (the server), client/gradient_transforms.py (proximal term).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import NO_PAPER, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.numbers import NotNegative, Share
from fedraa.server.async_rule import (
    ASYNC_RULE,
    ApplyResult,
    AsyncModel,
    AsyncRule,
    ClientUpdate,
    MixingFormula,
    factor_at,
)
from fedraa.server.mixing import blend_weights
from fedraa.server.participation_correction import balanced_weight
from fedraa.server.schedule import AsyncSampled, AsyncSchedule
from fedraa.server.staleness import STALENESS, weight_for_clients


@ASYNC_RULE.register("convex-mix")
@dataclass
class ConvexMix(AsyncRule):
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness) (FedAsync, Fed-RAA).

    Attributes:
        mixing: Weight of an update before its staleness reduces it.
        staleness: The factor s, by which the weight decreases with staleness.
        participation_correction: The power p. The weight is also multiplied by (the client's share of the data / its
            share of the updates) ** p; 0 turns the factor off.
    """

    mixing: Share = 0.6
    staleness: Any = "constant"
    participation_correction: NotNegative = 0.0

    mixing_formula: ClassVar[MixingFormula | None] = "blend"
    state_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._factor = STALENESS.resolve(self.staleness)

    def start(self, model: AsyncModel) -> None:
        self._factor = weight_for_clients(self._factor, model.at_work)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        mix = self.weight(update.staleness, update.balance)
        blend_weights(model.params, update.coordinates, update.new, mix)
        return ApplyResult(mix)

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        return balanced_weight(self.mixing * factor_at(staleness, self._factor), balance)


register(
    Method(
        name="fedasync",
        paper="Xie, Koyejo, Gupta 2019",
        formula="`theta ← (1 − a) theta + a w`, a = mixing · s(staleness).",
        when="Devices differ in speed, and each can train the whole model. It is the simplest asynchronous method.",
        local=LocalTraining(prox_mu=0.005),
        update=ConvexMix(),
        # The whole model is the only fragment, so the scheduler has no choice.
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="Xie et al. 2019, CIFAR-10",
            values={"lr": 0.1, "batch_size": 50, "prox_mu": 0.005, "mixing": 0.6, "momentum": 0.0},
            unstated="the choice between mixing .6 and .9",
        ),
    )
)


def async_variant(method: Method) -> Method:
    """Return an asynchronous variant of `method`: its submodels, with the server of FedAsync.

    `method` is a method that works in rounds. No paper has the variant. It shows the time that `method`
    loses by waiting at the end of rounds.
    """
    return replace(
        method,
        name=f"{method.name}-async",
        variant_of=method.name,
        paper="no paper: submodels of a synchronous method, update of FedAsync",
        note="no paper: a baseline that measures the cost of waiting at the end of rounds",
        formula=f"The submodels of {method.name}, mixed in as in fedasync.",
        when=f"To measure the cost of {method.name}'s rounds.",
        update=ConvexMix(staleness="polynomial"),
        schedule=AsyncSampled(),
        paper_settings=NO_PAPER,
    )
