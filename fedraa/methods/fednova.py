"""FedNova: average the deltas of clients per local step, and scale the mean back (Wang et al. 2020, Algorithm 1).

Client i: tau_i local steps of SGD, which may differ between clients (deadlines, epochs over unequal data)
    delta_i = w_i - theta
    a_i = length of its path if all gradients had length 1:
        v = x = 0; tau_i times: v <- momentum * v + 1 - prox_mu * x; x <- x + lr * v;  a_i = x
Server, for each coordinate, over the clients i that trained it:
    p_i = n_i / sum of n
    theta <- theta + (sum of p_i a_i) * (sum of p_i delta_i / a_i)

Without momentum and proximal term a_i = lr * tau_i. A client that stops at a deadline counts by the steps that it ran.
A learning rate that is the same for all clients cancels.

Read next: aggregation/coverage_mean.py (means by coordinate), server/partial_work.py (the steps before a deadline).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Mask
from fedraa.vectors.chunked import map_chunks
from fedraa.vectors.coverage_counter import CoverageCounter


@AGGREGATOR.register("fednova")
@dataclass
class NormalisedMean(CoverageMean):
    """FedNova (Wang et al. 2020): (sum of p_i a_i) * (sum of p_i delta_i / a_i), for each coordinate.

    The sums are over the clients that trained the coordinate, and p_i are the weights of the clients among these.
    """

    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"local_optimizer": "the length of its path is not known from the number of steps"}
    )
    state_fields: ClassVar[tuple[str, ...]] = ("_lengths",)

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._lengths = CoverageCounter(size, np.float32)

    def add(self, contribution: ClientDelta) -> None:
        super().add(contribution)
        self._lengths.add(contribution.change, contribution.weight * contribution.path_length)

    def _factor(self, contribution: ClientDelta) -> float:
        return contribution.weight / contribution.path_length

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


NOVA_SETTINGS = PaperSettings(
    source="authors' code, CIFAR-10",
    values={"lr": 0.02, "momentum": 0.0, "batch_size": 32, "local_epochs": 2, "weights": "samples"},
    unstated="the learning rate of each variant; it is the one of the script",
)

register(
    Method(
        name="fednova",
        paper="Wang et al. 2020, Algorithm 1",
        formula="`theta ← theta + (Σ p a) · Σ p delta / a`; a is the length of a client's path by unit gradients.",
        when="Clients take unequal numbers of local steps: unequal data, or deadlines with `late=partial`.",
        local=PLAIN_SGD,
        update=Mean(weights="samples", aggregator=NormalisedMean()),
        paper_settings=NOVA_SETTINGS,
    )
)
