"""FedGMR: the model is the mean of the submodels that clients trained last, and submodels grow (arXiv 2512.05372).

When submodel w_i of client i arrives with staleness k:
    a_i = (k + 1)^-exponent                                 # n_i: the client's number of samples
    theta_c <- sum of a_i n_i w_ic / sum of a_i n_i, over the clients with coordinate c in their last submodel

Read next: submodels/policies/growing.py (growing submodels), server/async_server.py (the server).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.methods.fedbuff import Buffered
from fedraa.numbers import Count, NotNegative
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.schedule import AsyncSampled
from fedraa.submodels.policies.growing import Growing
from fedraa.vectors.client_rows import ClientRows


@ASYNC_RULE.register("fedgmr")
@dataclass
class FedGMR(Buffered):
    """FedGMR (2025): theta_c = sum a_i n_i w_ic / sum a_i n_i over the clients with c in their last submodel.

    c is a coordinate, a_i = (staleness + 1)^-exponent for the client's last update, and n_i is its number of samples.
    Coordinates in no submodel keep their values. The rule averages models, not deltas, so a stale large submodel pulls
    the model back. For each client the rule keeps the last submodel as a row [d], with NaN outside of the submodel.

    Attributes:
        size: Number of client updates per change of the model.
        exponent: Exponent of the staleness in a_i.
    """

    size: Count = 1
    exponent: NotNegative = 0.6

    keeps: ClassVar[str] = "w_i [N, d]"
    uses_samples: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_last", "_weights", "_sum", "_weight", "_covered")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        size = len(model.params)
        self._last = ClientRows(size, model.clients, lambda: np.full(size, np.nan, np.float32))
        self._weights: dict[int, float] = {}
        self._sum = np.zeros(size)
        self._weight = np.zeros(size)
        self._covered = np.zeros(size, np.int32)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        client = update.client
        row = self._last[client]
        if client in self._weights:
            self._add_row(row, self._weights[client], sign=-1)
        row.fill(np.nan)
        row[update.where] = update.new
        self._weights[client] = float((update.staleness + 1) ** -self.exponent * update.samples)
        self._add_row(row, self._weights[client], sign=1)
        full = self._count_update()
        if full:
            covered = self._covered > 0
            model.params[covered] = (self._sum[covered] / self._weight[covered]).astype(np.float32)
        return ApplyResult(self._weights[client] / sum(self._weights.values()), full)

    def _add_row(self, row: Vector, weight: float, *, sign: int) -> None:
        """Add a client's submodel to the sums, or subtract it if `sign` is -1."""
        covered = ~np.isnan(row)
        step = sign * weight
        self._sum += step * np.where(covered, row, 0).astype(np.float64)
        self._weight += step * covered
        self._covered += sign * covered

    def memory(self, size: int, clients: int) -> int:
        return size * (4 * clients + 20)


register(
    Method(
        name="fedgmr",
        paper="arXiv 2512.05372",
        note="submodels grow at fixed times, by the largest weights",
        formula="`theta_c = Σ a_i n_i w_ic / Σ a_i n_i` over the clients whose last submodel has c; submodels grow.",
        when="Small devices that can train larger submodels later on.",
        submodel=Growing(),
        local=PLAIN_SGD,
        update=FedGMR(),
        schedule=AsyncSampled(),
        paper_settings=PaperSettings(
            source="release of the authors",
            values={"capacities": (1.0, 0.5, 0.2, 0.1, *[0.05] * 6)},
            unstated="rates, batches",
        ),
    )
)
