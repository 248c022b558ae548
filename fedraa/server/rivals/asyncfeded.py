"""AsyncFedED: a weight by how far the model has gone on, against how far the client went."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.messages import Vector
from fedraa.server.async_rules import Arrival, AsyncModel, AsyncRule, Taken


@dataclass
class AsyncFedED(AsyncRule):
    """AsyncFedED (Wang et al. 2022), its step: theta += server_lr / (r + epsilon) * delta.

    r = |theta - sent| / |delta|. A fresh update counts server_lr / epsilon; a delta of 0 has the weight 0. The paper's
    other half, how many epochs a client trains next, is left out.
    """

    server_lr: float = 1.0
    epsilon: float = 1.0

    measures: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon: got {self.epsilon}; takes more than 0")

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        delta = arrival.delta
        length = _length(delta)
        if length == 0:
            return Taken(0.0)
        ratio = _length(model.params[arrival.where] - arrival.sent) / length
        weight = self.server_lr / (ratio + self.epsilon)
        model.params[arrival.where] += np.float32(weight) * delta
        return Taken(weight)

    def state(self) -> dict[str, Any]:
        return {}


def _length(vector: Vector) -> float:
    return float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
