"""FADAS: an adaptive step behind the buffer, cut when something in it is stale."""

from dataclasses import dataclass, field
from typing import Any

from fedraa.messages import Vector
from fedraa.numbers import Count
from fedraa.server.async_rule import Arrival, AsyncModel, Buffer, Taken
from fedraa.server.optimizers import AmsGrad


@dataclass
class Fadas(Buffer):
    """FADAS (Wang et al. 2024): every `size` arrivals a step of AMSGrad along their mean delta.

    Where the largest staleness among them, counted in steps, is over `delay_limit` the step is divided by it.
    """

    size: Count = 5
    staleness: Any = "constant"
    optimizer: Any = field(default_factory=AmsGrad)
    delay_limit: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is None:
            raise ValueError("optimizer: got None; FADAS takes a server optimizer, such as amsgrad")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._worst = 0

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        self._worst = max(self._worst, arrival.staleness)
        taken = super().take(arrival, model)
        if taken.advanced:
            self._worst = 0
        return taken

    def _step(self, params: Vector, weight: float) -> None:
        cut = self._worst if self._worst > self.delay_limit else 1
        assert self._stepping is not None
        self._stepping.server_lr = self.optimizer.server_lr / cut
        super()._step(params, weight)

    def state(self) -> dict[str, Any]:
        return super().state() | {"worst": self._worst}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._worst = state["worst"]
