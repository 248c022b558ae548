"""FedNova: average the deltas of clients per local step, and scale the mean back (Wang et al. 2020, Algorithm 1).

Client i: tau_i local steps of SGD, which may differ between clients (deadlines, epochs over unequal data)
    delta_i = w_i - theta
    a_i = length of its path if all gradients had length 1:
        v = x = 0; tau_i times: v <- momentum * v + 1 - prox_mu * x; x <- x + lr * v;  a_i = x
Server, for each coordinate, over the clients i that trained it:
    p_i = n_i / sum of n                                    # n_i: number of samples
    theta <- theta + (sum of p_i a_i) * (sum of p_i delta_i / a_i)

Without momentum and proximal term, a_i = lr * tau_i. For a client that stops at a deadline, tau_i counts the steps that
it finished. A learning rate that is the same for all clients cancels. The authors' code adds the proximal term after
the momentum, and with this term the first factor of the server is lr * sum of p_i tau_i.

Without rounds, the updates of a full buffer take the place of the clients of a round. s(k) is the weight for staleness
k:
    theta <- theta + server_lr * (sum of p_i a_i) * (sum of p_i s(k_i) delta_i / a_i)
With `reference_steps` R, the buffer may hold a single update, because every delta is scaled to R steps:
    theta <- theta + server_lr * sum of p_i s(k_i) * R / tau_i * delta_i

Read next: aggregation/coverage_mean.py (means by coordinate), server/partial_work.py (the steps before a deadline),
methods/fedbuff.py (a rule with a buffer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import NO_PAPER, PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Mask, Vector
from fedraa.methods.fedbuff import Buffered
from fedraa.numbers import Count, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate, factor_at
from fedraa.server.round_update import Mean
from fedraa.server.schedule import AsyncSchedule
from fedraa.server.staleness import STALENESS, weight_for_clients
from fedraa.vectors.chunked import add_scaled, map_chunks
from fedraa.vectors.coverage_counter import CoverageCounter

REFUSES = MappingProxyType(
    {
        "local_optimizer": "the length of its path is not known from the number of steps",
        "local_optimizer_state": "momentum of earlier tasks makes a path longer than its number of steps shows",
    }
)


@AGGREGATOR.register("fednova")
@dataclass
class NormalisedMean(CoverageMean):
    """FedNova (Wang et al. 2020): (sum of p_i a_i) * (sum of p_i delta_i / a_i), for each coordinate.

    The sums are over the clients that trained the coordinate. p_i is client i's share of the sum of their weights.
    """

    refuses: ClassVar[Mapping[str, str]] = REFUSES
    state_fields: ClassVar[tuple[str, ...]] = ("_lengths",)

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._lengths = CoverageCounter(size, np.float32)

    def add(self, contribution: ClientDelta) -> None:
        super().add(contribution)
        self._lengths.add(contribution.change, contribution.weight * contribution.path_length)

    def _factor(self, contribution: ClientDelta) -> float:
        return contribution.weight * contribution.discount / contribution.path_length

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        divisor = np.asarray(self._weights.finish())
        lengths = np.asarray(self._lengths.finish())
        factors = np.divide(lengths, divisor, out=np.zeros_like(lengths), where=divisor > 0)
        mean = self._weighted_sum()
        covered = totals.trained

        def scale_piece(piece: slice) -> None:
            mean[piece] *= factors[piece]
            np.divide(mean[piece], divisor[piece], out=mean[piece], where=covered[piece])

        map_chunks(self._size, scale_piece)
        self._begin_round()
        return mean, covered

    def memory(self, size: int, clients: int) -> int:
        return 20 * size


@ASYNC_RULE.register("fednova")
@dataclass
class FedNovaRule(Buffered):
    """FedNova over a buffer of `size` client updates, weighted by samples and finished steps.

    The log shows only s(staleness) as the weight of an update, because the full weight depends on the whole buffer.

    Attributes:
        size: Number of updates in the buffer.
        staleness: The factor s, by which the weight of a delta decreases with staleness.
        server_lr: Length of the step along the normalised mean.
        reference_steps: Number of local steps to which every delta is scaled. With None, it is the mean number of
            steps of the updates in the buffer, so a buffer of one update is not scaled.
    """

    size: Count = 10
    staleness: Any = "polynomial"
    server_lr: Positive = 1.0
    reference_steps: Count | None = None

    keeps: ClassVar[str] = "buffer [d], weights [d], lengths [d]"
    uses_samples: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = REFUSES
    state_fields: ClassVar[tuple[str, ...]] = ("_mean", "_coverage")

    def __post_init__(self) -> None:
        self._factor = STALENESS.resolve(self.staleness)

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._factor = weight_for_clients(self._factor, model.at_work)
        self._mean = NormalisedMean().bind(len(model.params), model.clients)
        self._coverage = CoverageCounter(len(model.params), np.int32)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weight = factor_at(update.staleness, self._factor)
        length = update.path_length
        discount = weight
        if self.reference_steps is not None:
            length = 1.0
            discount *= self.reference_steps / update.steps
        change = update.change
        self._mean.add(
            ClientDelta(update.client, change, update.samples, lr=0.0, path_length=length, discount=discount)
        )
        self._coverage.add(change)
        full = self._count_update()
        if full:
            delta, _ = self._mean.finish(RoundTotals(self._coverage.finish(), lr=0.0))
            add_scaled(model.params, slice(None), self.server_lr, delta)
        return ApplyResult(weight, full)

    def memory(self, size: int, clients: int) -> int:
        return 28 * size


register(
    Method(
        name="fednova",
        paper="Wang et al. 2020, Algorithm 1",
        formula="`theta ← theta + (Σ p a) · Σ p delta / a`; a is a client's path length with gradients of length 1.",
        when="Clients take unequal numbers of local steps: unequal data, or deadlines with `late=partial`.",
        local=PLAIN_SGD,
        update=Mean(weights="samples", aggregator=NormalisedMean()),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10, without its smaller rates in the second half of the rounds",
            values={
                "lr": 0.02,
                "momentum": 0.0,
                "weight_decay": 1e-4,
                "batch_size": 32,
                "local_epochs": 2,
                "weights": "samples",
            },
            unstated="the learning rate of each variant, which is here that of the authors' script",
        ),
    )
)

register(
    Method(
        name="fednova-async",
        variant_of="fednova",
        paper="Wang et al. 2020, Algorithm 1",
        note="asynchronous variant by fedraa: the updates of a full buffer take the place of the clients of a round",
        formula="As fednova, with the updates of a full buffer as its round, each delta times s(staleness).",
        when="As fednova, if some devices are slow. With `update.reference_steps` the buffer may have size 1.",
        local=PLAIN_SGD,
        update=FedNovaRule(),
        schedule=AsyncSchedule(),
        paper_settings=NO_PAPER,
    )
)
