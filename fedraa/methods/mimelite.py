"""MimeLite: clients apply the server's momentum, which stays frozen during a round (Karimireddy et al. 2021).

Client n, with m frozen:  w <- w - lr * ((1 - beta) * g + beta * m);  send w and the full-batch gradient of f_n at theta
Server:  theta <- mean of the models, weighted by samples
         m <- (1 - beta) * mean full-batch gradient + beta * m

Read next: methods/fedcm.py (the base class of the momentum), server/round_state.py (state beside the model).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import ExtraBuffers, Mask, Update, Vector
from fedraa.methods.fedcm import GlobalMomentum
from fedraa.server.round_state import RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import map_chunks, mask_or_true
from fedraa.vectors.coverage_counter import CoverageCounter
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.index_ranges import where_of


@dataclass
class FrozenMomentum(GlobalMomentum):
    """The server's momentum m of MimeLite, which does not change while clients train.

    After a round: m <- (1 - beta) * g + beta * m. Here g is the mean of the clients' full-batch gradients at theta.
    """

    keeps: ClassVar[str] = "m [d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": "clients step along the server's momentum, which must not change during a task",
            "local_optimizer": "clients step along the server's momentum, without a local optimizer",
            "aggregator": "m is a mean of gradients, and a robust aggregator would not bound the attackers' gradients",
        }
    )
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1, up=1)
    asks: ClassVar[tuple[str, ...]] = ("gradient",)
    state_fields: ClassVar[tuple[str, ...]] = ("_gradient", "_coverage")

    def start(self, run: RoundStateContext) -> None:
        super().start(run)
        self._beta = np.float32(1 - run.grad_mix)
        self._gradient = CoverageMean().bind(run.size, run.clients)
        self._coverage = CoverageCounter(run.size, np.int32)

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        gradient = DeltaView(where_of(assignment.submodel), update.extras["gradient"], mask=assignment.mask)
        self._coverage.add(gradient)
        self._gradient.add(replace(contribution, change=gradient))

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        mean, covered = self._gradient.finish(RoundTotals(self._coverage.finish(), 1.0))

        def blend_piece(piece: slice) -> None:
            momentum = self._momentum[piece]
            fresh = (1 - self._beta) * mean[piece] + self._beta * momentum
            np.copyto(momentum, fresh, where=mask_or_true(covered[piece]))

        map_chunks(len(mean), blend_piece)

    def memory(self, size: int, clients: int) -> int:
        # MimeLite also keeps the mean gradient, and the number of clients that trained each coordinate.
        return super().memory(size, clients) + CoverageMean().memory(size, clients) + 4 * size


register(
    Method(
        name="mimelite",
        paper="Karimireddy et al. 2021",
        formula="Clients step along k · g + (1 − k) · m, k = grad_mix; after the round m follows the mean gradient.",
        when="As fedcm, if clients can afford one more pass over their data for the exact gradient.",
        local=replace(PLAIN_SGD, grad_mix=0.1, full_gradient=True),
        update=Mean(weights="samples", auxiliary=FrozenMomentum()),
        paper_settings=PaperSettings(
            source="FedSAM, Section 5.1; fedjax",
            values={"momentum": 0.0, "local.grad_mix": 0.1, "server_lr": 1.0, "weights": "samples"},
        ),
    )
)
