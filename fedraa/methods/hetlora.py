"""HetLoRA: adapters of unequal rank are padded with zeros and averaged (Cho et al. 2024).

Client i, with rank r_i: trains the first r_i rows of A and columns of B
Server: p_i = ||B_i A_i|| / sum of ||B_k A_k||
        A <- sum of p_i A_i,  B <- sum of p_i B_i           # ranks that client i does not train are 0 in A_i and B_i

Read next: aggregation/low_rank.py (the base of this class and of FLoRA), models/lora.py (adapters).
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.low_rank import LowRank
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Mask, Vector
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.slices import Prefix

# The smallest weight of a client. It keeps the sum of the weights above 0 if the products B A of all clients are 0.
MIN_WEIGHT = 1e-12


@AGGREGATOR.register("hetlora")
@dataclass
class HetLoRA(LowRank):
    """HetLoRA (Cho et al. 2024) without pruning of ranks: A = sum p_i A_i, B = sum p_i B_i.

    p_i = s_i / sum s, where s_i is the root of the sum of ||B_i A_i||_F^2 over all layers. Ranks that client i does not
    train count as 0. Ranks that no client trained in a round do not move. Each parameter outside of the adapters
    becomes the mean over the clients that trained it, weighted by s_i.
    """

    weighs: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("_reports",)

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._reports = 0

    def add(self, contribution: ClientDelta) -> None:
        if self._pairs:
            padded = self._pad_trained(contribution)
            norm = math.sqrt(sum(pair.squared_norm(padded) for pair in self._pairs))
            contribution = replace(contribution, weight=max(norm, MIN_WEIGHT))
        self._reports += 1
        super().add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        # Coordinates of adapters that only some clients of the round trained. For the other clients, such a coordinate
        # counts as 0.
        mine = self._adapter_mask() & totals.covered & (totals.coverage < self._reports)
        participants = np.float32(self._participants)
        self._reports = 0
        delta, moved = super().finish(totals)
        if self._pairs:
            share = self._weighed[mine] / participants
            delta[mine] = share * delta[mine] - (1 - share) * self._params[mine]
        return delta, moved

    def _take_divisor(self) -> Vector:
        self._weighed = np.asarray(super()._take_divisor())
        return self._weighed


register(
    Method(
        name="hetlora",
        paper="Cho et al. 2024",
        note="for models with adapters: fedraa.lora; ranks are not pruned",
        formula=(
            "`B = Σ p_i B_i`, `A = Σ p_i A_i`, with p_i in proportion to ‖B_i A_i‖ over all layers. "
            "The ranks follow from the devices and are not pruned. Parameters without adapters become their mean."
        ),
        when="Adapters made by fedraa.lora or peft, and devices that can train only some of their ranks.",
        submodel=Prefix(),
        update=Mean(aggregator=HetLoRA()),
        paper_settings=PaperSettings(source="Cho et al. 2024", unstated="ranks, rates, local work"),
    )
)
