"""Settings of a synchronous server: the mean of a round's deltas, the server's step, and the auxiliary state."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.components.calls import memory_of
from fedraa.errors import InputError
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer, Sgd
from fedraa.server.round_state import RoundState

WEIGHTS = ("uniform", "samples")


@dataclass(frozen=True)
class Mean:
    """The server's part of a synchronous method: a step by the mean delta of a round.

    Attributes:
        weights: `uniform` if all clients count equally, `samples` if they are weighted by their number of samples.
        aggregator: The component that computes the mean.
        optimizer: The component that takes the step.
        auxiliary: State besides the model, such as control variates.
        owned_head: True to average an output row only over the clients that hold its label (HeteroFL).
    """

    weights: str = "uniform"
    aggregator: Any = field(default_factory=CoverageMean)
    optimizer: Any = field(default_factory=Sgd)
    auxiliary: RoundState = field(default_factory=RoundState)
    owned_head: bool = False

    asynchronous: ClassVar[bool] = False
    needs_all_clients: ClassVar[bool] = False
    per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise InputError("weights", got=self.weights, expected=" or ".join(WEIGHTS))
        if not isinstance(self.auxiliary, RoundState):
            raise InputError("auxiliary", got=self.auxiliary, expected="an object of RoundState or of a subclass")

    def resolve_aggregator(self) -> Aggregator:
        """Return the aggregator as an object."""
        return AGGREGATOR.resolve(self.aggregator)

    def resolve_optimizer(self) -> ServerOptimizer:
        """Return the server optimizer as an object."""
        return SERVER_OPTIMIZER.resolve(self.optimizer)

    def memory(self, size: int, clients: int) -> int:
        """Return an upper bound of the memory in bytes for the aggregator and the auxiliary state."""
        of_aggregator = memory_of("aggregator", self.resolve_aggregator(), size, clients)
        return of_aggregator + memory_of("auxiliary", self.auxiliary, size, clients)
