"""AsyncFedED: a weight by how far the model has gone on, against how far the client went."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Vector
from fedraa.server.async_rules import Arrival, AsyncModel, AsyncRule, Taken
from fedraa.server.coordinates import places_of
from fedraa.server.passes import PIECE, accumulate, each, less, scratch


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

        def squares(piece: slice) -> tuple[float, float]:
            was = sent[piece]
            gone: Vector = scratch("gone", len(was))
            for place, part in places_of(arrival.places, piece):
                np.subtract(model.params[place], was[part], out=gone[part])
            return _square(less(new[piece], was)), _square(gone)

        length, gone = _lengths(len(new), squares)
        if length == 0:
            return Taken(0.0)
        weight = self.server_lr / (gone / length + self.epsilon)
        accumulate(model.params, arrival.places, weight, new, sent)
        return Taken(weight)

    def state(self) -> dict[str, Any]:
        return {}


def _square(piece: Vector) -> float:
    """The sum of its squares, in double precision."""
    wide = scratch("squares", len(piece), np.float64)
    np.copyto(wide, piece)
    return float(np.multiply(wide, wide, out=wide).sum())


def _lengths(size: int, squares: Callable[[slice], tuple[float, float]]) -> tuple[float, float]:
    """The norms of two vectors [size], of whose pieces `squares` gives the sums; added up in the order of NumPy."""
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
    sums = iter(each(leaves, lambda piece: np.array(squares(piece))))

    def added(length: int) -> npt.NDArray[np.float64]:
        if length <= PIECE:
            return next(sums)
        first = length // 2 - length // 2 % 8
        return added(first) + added(length - first)

    first, second = np.sqrt(added(size)).tolist()
    return first, second
