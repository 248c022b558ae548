"""FedBuff: collect K deltas, then make one step (Nguyen et al. 2022, Algorithm 1).

Every idle client receives the model theta and trains it by SGD.
When delta = w - theta_sent arrives with staleness k:
    buffer += s(k) * delta
    if the buffer holds K deltas:
        theta <- theta + server_lr / K * buffer
        buffer = 0
With a robust `aggregator` the buffer is full when it holds deltas of K clients, and one client has one vote:
    theta <- theta + server_lr * (mean of the weights s) * aggregator(deltas)
With central privacy every delta is clipped, and noise is added to each full buffer (privacy/central.py).

From scratch: examples/fedbuff_from_scratch.py.

Read next: server/staleness.py (s), server/async_server.py (the server), server/optimizers.py (momentum at the server).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.components.calls import convert_errors, memory_of
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.numbers import Count, NotNegative, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate, factor_at
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer
from fedraa.server.schedule import AsyncSchedule
from fedraa.server.staleness import STALENESS, weight_for_clients
from fedraa.vectors.chunked import add_scaled


@dataclass
class Buffered(AsyncRule):
    """A rule that changes the model once every `size` client updates. Only these changes give a new model version.

    A subclass calls `_count_update` after it has added an update to its buffer.
    """

    size: Count = 10

    state_fields: ClassVar[tuple[str, ...]] = ("_count",)

    @property
    def per_step(self) -> int:
        return self.size

    def start(self, model: AsyncModel) -> None:
        # Number of updates in the buffer.
        self._count = 0

    def _count_update(self) -> bool:
        """Count an update that was added to the buffer. Return True if the buffer is full and must be emptied."""
        self._count = (self._count + 1) % self.size
        return self._count == 0


@ASYNC_RULE.register("buffer")
@dataclass
class FedBuffRule(Buffered):
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * delta, every K updates.

    With an `optimizer`, this optimizer takes the step along the mean of the buffer (FedBuff's server momentum). The log
    then shows only s as the weight. Deltas in the buffer at the end of the run have no effect.

    With fragments, a full buffer counts as an update of the fragment whose delta filled it. The staleness of other
    fragments in the buffer is then too low; `staleness_clock="server"` counts every full buffer.

    With a robust `aggregator`, the buffer waits for deltas of K different clients, so that a fast attacker cannot fill
    it. The deltas of one client are averaged. If fewer than K clients remain, the buffer waits for all of them.

    Attributes:
        staleness: The factor s, by which the weight of a delta decreases with staleness.
        server_lr: Length of the step along the mean delta; with an `optimizer`, the factor of the delta that it gets.
        optimizer: The optimizer that takes the step; None for a step along the mean delta.
        participation_correction: The power p. A delta is also multiplied by (the client's share of the data / its share
            of the updates) ** p, which may exceed 1; 0 turns the factor off.
        aggregator: Robust aggregator of the buffer; None for the mean.
    """

    staleness: Any = "polynomial"
    server_lr: Positive = 1.0
    optimizer: Any = None
    participation_correction: NotNegative = 0.0
    aggregator: Any = None

    keeps: ClassVar[str] = "buffer [d]"
    adds_noise: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_total", "_moved", "_stepping", "_robust", "_weights", "_gone")

    def __post_init__(self) -> None:
        self._factor = STALENESS.resolve(self.staleness)
        if self.optimizer is not None:
            self.optimizer = SERVER_OPTIMIZER.resolve(self.optimizer)
        if self.aggregator is not None:
            self.aggregator = AGGREGATOR.resolve(self.aggregator)
            if not isinstance(self.aggregator, RobustAggregator) or not self.aggregator.buffers:
                problem = f"{type(self.aggregator).__name__} works only in rounds, and this method has no rounds"
                hint = "give a robust aggregator such as median, or a method in rounds"
                raise InputError("aggregator", problem, hint=hint)

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        size = len(model.params)
        self._factor = weight_for_clients(self._factor, model.at_work)
        self._total = np.zeros(size, np.float32)
        self._stepping = None
        self._moved = np.zeros(0, bool)
        if self.optimizer is not None:
            self._stepping = self.optimizer.bind(size, model.tensors)
            self._moved = np.zeros(size, bool)
        self._robust: RobustAggregator | None = None
        self._weights: list[float] = []
        # Number of clients that get no more tasks.
        self._gone = 0
        if self.aggregator is not None:
            self._robust = self.aggregator.bind(size, model.clients)
            self._robust.sent = model.sent or size

    def leave(self, client: int) -> None:
        self._gone += 1

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weight = factor_at(update.staleness, self._factor) * update.balance
        if model.release_noise is not None and abs(weight) > 1:
            problem = "with central privacy, the weight of an update must not exceed 1"
            raise InputError("staleness", problem, got=weight, expected="a weight of at most 1")
        if self._robust is None:
            add_scaled(self._total, update.coordinates, weight, update.new, update.sent)
            full = self._count_update()
            if self._stepping is not None:
                self._moved[update.where] = True
        else:
            fragment = update.fragment if model.fragments > 1 else None
            self._robust.add(ClientDelta(update.client, update.change, weight, lr=0.0, fragment=fragment))
            self._weights.append(weight)
            full = self._robust.voters >= min(self.size, model.clients - self._gone)
        unprotected = 0
        if full:
            factor = self.server_lr / self.size
            if self._robust is not None:
                factor = self._take_votes(self._robust)
                unprotected = self._robust.unprotected
            if model.release_noise is not None:
                noise, covered = model.release_noise()
                self._total[covered] += noise[covered]
            self._apply_buffer(model.params, factor)
            self._total.fill(0)
            self._moved.fill(False)
        if self._stepping is not None or self._robust is not None:
            return ApplyResult(weight, full, unprotected=unprotected)
        return ApplyResult(weight * self.server_lr / self.size, full)

    def _take_votes(self, robust: RobustAggregator) -> float:
        """Put the robust combination of the clients' deltas into the buffer. Return the weight of this combination."""
        delta, moved = robust.take_result()
        self._total[:] = delta
        if self._stepping is not None:
            self._moved[:] = moved
        factor = self.server_lr * float(np.mean(self._weights))
        self._weights.clear()
        return factor

    def _apply_buffer(self, params: Vector, weight: float) -> None:
        """Move `params` [d] by the weighted deltas in the buffer."""
        if self._stepping is None:
            add_scaled(params, slice(None), weight, self._total)
            return
        with convert_errors("server_optimizer", self._stepping):
            self._stepping.step(params, np.float32(weight) * self._total, self._moved)

    def memory(self, size: int, clients: int) -> int:
        if self.aggregator is not None:
            return memory_of("aggregator", self.aggregator, size, clients) + 9 * size
        if self.optimizer is None:
            return 4 * size
        if isinstance(self.optimizer, ServerOptimizer):
            return 5 * size + memory_of("server_optimizer", self.optimizer, size)
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
            source="authors' code, sent140, where a sum of 10 deltas with rate .7 equals a mean with rate 7",
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
