"""FedBuff: collect K deltas, then make one step (Nguyen et al. 2022, Algorithm 1).

Every idle client receives the model theta and trains it by SGD.
When delta = w - theta_sent arrives with staleness k:
    buffer += s(k) * delta
    if the buffer holds K deltas:
        theta <- theta + server_lr / K * buffer
        buffer = 0

From scratch: examples/fedbuff_from_scratch.py.

Read next: server/staleness.py (s), server/async_server.py (the server), server/optimizers.py (momentum at the server).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.numbers import Count, NotNegative, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate, factor_at
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer
from fedraa.server.schedule import AsyncSchedule
from fedraa.server.staleness import STALENESS, weight_for_clients
from fedraa.vectors.chunked import add_scaled


@dataclass
class Buffered(AsyncRule):
    """A rule that moves the model once every `size` client updates. The version counts these moves."""

    size: Count = 10

    @property
    def per_step(self) -> int:
        return self.size


@ASYNC_RULE.register("buffer")
@dataclass
class FedBuffRule(Buffered):
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * delta, every K arrivals.

    With an `optimizer`, that optimizer steps along the mean of the buffer instead (FedBuff's server momentum). The log
    then shows only s, because the optimizer decides the length of the step. Deltas in the buffer at the end of the run
    are dropped. With `participation_correction`, each delta has another factor: its client's data against its speed, to
    this power. The factor may be over 1, because the buffer is a weighted mean.

    Attributes:
        staleness: The factor s, by which the weight of a delta decreases with staleness.
        server_lr: Length of the step along the mean delta.
        optimizer: The optimizer that takes the step. With None, the step is along the mean delta.
        participation_correction: Power of the factor of a delta that weighs its client's data against its speed; 0
            turns it off.
    """

    staleness: Any = "polynomial"
    server_lr: Positive = 1.0
    optimizer: Any = None
    participation_correction: NotNegative = 0.0

    keeps: ClassVar[str] = "buffer [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_total", "_count", "_moved", "_stepping")

    def __post_init__(self) -> None:
        self._factor = STALENESS.resolve(self.staleness)
        if self.optimizer is not None:
            self.optimizer = SERVER_OPTIMIZER.resolve(self.optimizer)

    def start(self, model: AsyncModel) -> None:
        size = len(model.params)
        self._factor = weight_for_clients(self._factor, model.at_work)
        self._total = np.zeros(size, np.float32)
        self._count = 0
        self._stepping = None
        self._moved = np.zeros(0, bool)
        if self.optimizer is not None:
            self._stepping = self.optimizer.bind(size)
            self._moved = np.zeros(size, bool)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weight = factor_at(update.staleness, self._factor) * update.balance
        add_scaled(self._total, update.coordinates, weight, update.new, update.sent)
        self._count += 1
        if self._stepping is not None:
            self._moved[update.where] = True
        full = self._count == self.size
        if full:
            self._apply_buffer(model.params, self.server_lr / self.size)
            self._total.fill(0)
            self._moved.fill(False)
            self._count = 0
        if self._stepping is not None:
            return ApplyResult(weight, full)
        return ApplyResult(weight * self.server_lr / self.size, full)

    def _apply_buffer(self, params: Vector, weight: float) -> None:
        """Move `params` [d] by the weighted deltas in the buffer."""
        if self._stepping is None:
            add_scaled(params, slice(None), weight, self._total)
            return
        with convert_errors("server_optimizer", self._stepping):
            self._stepping.step(params, np.float32(weight) * self._total, self._moved)

    def memory(self, size: int, clients: int) -> int:
        if self.optimizer is None:
            return 4 * size
        if isinstance(self.optimizer, ServerOptimizer):
            return 5 * size + self.optimizer.memory(size)
        return 5 * size


register(
    Method(
        name="fedbuff",
        paper="Nguyen et al. 2022",
        formula="`theta ← theta + server_lr / K · Σ s(staleness) · delta`, every K updates.",
        when="Many devices at once: the mean over a buffer is less noisy than the single updates of fedasync.",
        local=PLAIN_SGD,
        update=FedBuffRule(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="authors' code, sent140; its sum over 10 at .7 is a mean at 7",
            values={
                "lr": 0.1,
                "momentum": 0.0,
                "batch_size": 32,
                "local_epochs": 1,
                "buffer_size": 10,
                "server_optimizer": "momentum(server_lr=7.0, beta=0.9)",
            },
        ),
    )
)
