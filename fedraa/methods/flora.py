"""FLoRA: average the products B A of adapters exactly, by stacking the adapters (Wang et al. 2024).

Server: W <- W + scale * sum of p_i B_i A_i                 # p_i: the client's share of the samples
        B <- 0;  A <- a new random matrix, the same for all clients

Read next: aggregation/low_rank.py (the base of this class and of HetLoRA), models/lora.py (adapters).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.low_rank import LowRank
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.messages import Mask, Vector
from fedraa.rng import generator
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RunContext
from fedraa.submodels.policies.slices import Prefix


@AGGREGATOR.register("flora")
@dataclass
class FLoRA(LowRank):
    """FLoRA (Wang et al. 2024): a layer's weight moves by exactly scale * sum p_i B_i A_i. Then adapters are reset.

    The sum is the stack [B_1 ... B_K] [p_1 A_1; ...; p_K A_K], where p_i is the client's share of the round's samples.
    In the paper, clients add this product to their base weights. In fedraa the server adds it to the parameters
    `merged` of the model, which clients read and do not train. Then B becomes 0, and a new A is drawn for all clients.
    All other trained parameters are averaged over the clients that trained them.

    Traffic is counted as in the paper. A client sends its adapter. It receives the adapter and the stacks of all rounds
    since its last task, or the merged weights if these are smaller.
    """

    keeps: ClassVar[str] = "merged weights"
    state_fields: ClassVar[tuple[str, ...]] = ("_products", "_samples", "_round", "_stack", "_stacked", "_received")

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._products: list[npt.NDArray[np.float64]] = []
        self._samples = 0.0
        self._round = self._stack = self._stacked = 0
        self._received = np.zeros(clients, np.int64)

    def see(self, run: RunContext) -> None:
        super().see(run)
        if any(pair.merged is None for pair in self._pairs):
            raise InputError(
                "aggregator",
                "FLoRA adds the trained adapters to the weights of their layers, but this model freezes these weights",
                hint="make the model by fedraa.lora(model, merge=True)",
            )
        self._clear_round()

    def add(self, contribution: ClientDelta) -> None:
        if self._pairs:
            padded = self._pad_trained(contribution)
            weight = contribution.weight
            for pair, product in zip(self._pairs, self._products, strict=True):
                product += weight * pair.change(padded)
            self._samples += weight
            self._stack += int(self._adapter_mask()[contribution.where].sum())
        super().add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        delta, moved = super().finish(totals)
        moved = moved.copy()
        rng = generator(self._run.seed, "flora", self._round) if self._pairs else None
        for pair, product in zip(self._pairs, self._products, strict=True):
            assert pair.merged is not None
            assert rng is not None
            delta[pair.merged] = product / self._samples
            moved[pair.merged] = True
            # The server optimizer must not move the adapters, because `begin` sets their new values.
            moved[pair.a] = moved[pair.b] = False
            pair.begin(self._params, rng)
        self._round += 1
        self._stacked += self._stack
        self._clear_round()
        return delta, moved

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        super().traffic_sizes(client, assignment)
        if not self._pairs:
            return None
        merged = self._merged_size
        where = assignment.where
        trained = len(self._params) if isinstance(where, slice) else len(where)
        up = trained - merged
        down = up + min(merged, self._stacked - int(self._received[client]))
        self._received[client] = self._stacked
        return down, up

    @property
    def _merged_size(self) -> int:
        return sum(pair.merged.stop - pair.merged.start for pair in self._pairs if pair.merged is not None)

    def _clear_round(self) -> None:
        self._products = [np.zeros(pair.merged.stop - pair.merged.start) for pair in self._pairs if pair.merged]
        self._samples = 0.0
        self._stack = 0

    def memory(self, size: int, clients: int) -> int:
        return super().memory(size, clients) + 8 * size + 8 * clients


register(
    Method(
        name="flora",
        paper="Wang et al. 2024 (FLoRA)",
        note="for models with adapters: fedraa.lora(model, merge=True)",
        formula=(
            "`W ← W + scale · Σ p_i B_i A_i`, p_i in proportion to the samples; then B is 0 and A is drawn again. "
            "Parameters without adapters become their mean."
        ),
        when="Adapters of different ranks, made by fedraa.lora(model, merge=True). The mean of the products is exact.",
        submodel=Prefix(),
        update=Mean(weights="samples", aggregator=FLoRA()),
        paper_settings=PaperSettings(
            source="authors' code",
            values={
                "lr": 3e-4,
                "local_epochs": 1,
                "batch_size": 128,
                # The paper's ranks are 64, 32, 16, 16, 8, 8, 4, 4, 4 and 4. A capacity is a rank divided by 64.
                "capacities": (1.0, 0.5, 0.25, 0.25, 0.125, 0.125, *[0.0625] * 4),
                "weights": "samples",
            },
        ),
    )
)
