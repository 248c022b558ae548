"""AsyncFedED: a weight by how far the model has gone on, against how far the client went."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.messages import Vector
from fedraa.server.async_rules import Arrival, AsyncModel, AsyncRule, Taken
from fedraa.server.coordinates import places_of
from fedraa.server.passes import PIECE, accumulate, each


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
        new, sent = arrival.new, arrival.sent
        length = _length(len(new), lambda piece: new[piece] - sent[piece])
        if length == 0:
            return Taken(0.0)

        def gone(piece: slice) -> Vector:
            now: Vector = np.concatenate([model.params[place] for place, _ in places_of(arrival.places, piece)])
            now -= sent[piece]
            return now

        ratio = _length(len(new), gone) / length
        weight = self.server_lr / (ratio + self.epsilon)
        accumulate(model.params, arrival.places, weight, new, sent)
        return Taken(weight)

    def state(self) -> dict[str, Any]:
        return {}


def _length(size: int, part: Callable[[slice], Vector]) -> float:
    """The norm of a vector [size], of which `part` gives a piece; in the order in which NumPy adds up all of it."""
    leaves: list[slice] = []

    def halve(piece: slice) -> None:
        """As NumPy's pairwise sum does."""
        length = piece.stop - piece.start
        if length <= PIECE:
            leaves.append(piece)
            return
        middle = piece.start + length // 2 - length // 2 % 8
        halve(slice(piece.start, middle))
        halve(slice(middle, piece.stop))

    halve(slice(0, size))
    sums = iter(each(leaves, lambda piece: float(np.square(part(piece), dtype=np.float64).sum())))

    def added(length: int) -> float:
        if length <= PIECE:
            return next(sums)
        first = length // 2 - length // 2 % 8
        return added(first) + added(length - first)

    return float(np.sqrt(added(size)))
