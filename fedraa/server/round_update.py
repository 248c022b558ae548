"""What the server does with a round's deltas: how they are averaged, which step is taken, what rides along."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import Covered
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.errors import short_text
from fedraa.numbers import Share
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer, Sgd
from fedraa.server.round_state import NoAuxiliary

WEIGHTS = ("uniform", "samples")


class RoundUpdate(ABC):
    """The server's part of a synchronous method; `owned_head` and `weights` are as Mean has them."""

    asynchronous: ClassVar[bool] = False
    blends: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    weights: str = "uniform"
    owned_head: bool = False
    auxiliary: NoAuxiliary = NoAuxiliary()

    per_step: ClassVar[int] = 1

    @abstractmethod
    def averaging(self) -> Aggregator:
        """How deltas are averaged."""

    @abstractmethod
    def stepping(self) -> ServerOptimizer:
        """How the step along their mean is taken."""

    def memory(self, size: int, clients: int) -> int:
        """Bytes that it takes besides the model, at most; the few numbers of input adversaries aside."""
        return self.averaging().memory(size, clients) + self.auxiliary.memory(size, clients, 0)


@dataclass(frozen=True)
class Mean(RoundUpdate):
    """A step along a round's mean delta: how it is averaged, how the step is taken, what rides along.

    `weights`: clients count alike (uniform) or as their samples. `owned_head`: output rows are averaged over the
    clients that hold their label alone (HeteroFL).
    """

    weights: str = "uniform"
    aggregator: Any = field(default_factory=Covered)
    optimizer: Any = field(default_factory=Sgd)
    auxiliary: NoAuxiliary = field(default_factory=NoAuxiliary)
    owned_head: bool = False

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights: got {short_text(self.weights)}; takes {', '.join(WEIGHTS)}")
        if not isinstance(self.auxiliary, NoAuxiliary):
            raise ValueError(
                f"auxiliary: got {short_text(self.auxiliary)}; takes an object of NoAuxiliary or of a subclass"
            )

    def averaging(self) -> Aggregator:
        return AGGREGATOR.make(self.aggregator)

    def stepping(self) -> ServerOptimizer:
        return SERVER_OPTIMIZER.make(self.optimizer)


@dataclass(frozen=True)
class SyncMix(RoundUpdate):
    """theta <- (1 - mixing) theta + mixing * mean of a round's returns, per fragment (Sync Fed-RAA)."""

    mixing: Share = 0.6

    def averaging(self) -> Aggregator:
        return Covered()

    def stepping(self) -> ServerOptimizer:
        return Sgd(self.mixing)
