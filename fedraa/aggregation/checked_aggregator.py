"""An aggregator at work in one run: the user's own, perhaps, which may be any object that can do what is needed."""

from typing import Any

import numpy as np

from fedraa.aggregation.aggregator import Contribution, RoundTotals
from fedraa.components.calls import calling
from fedraa.components.state import saved
from fedraa.messages import State, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.finite import LARGEST, at_most, largest_of, unfit


class BoundAggregator:
    """What an Aggregator does, of whatever was given: `see` and `moves` need not be there.

    Whatever it raises, or gives that is no use, is a ValueError, one sentence that names it.
    """

    def __init__(self, given: Any, run: RunContext) -> None:
        self._size = run.traced.size
        self._part = given.bind(self._size, run.clients)
        with calling("aggregator", self._part):
            if hasattr(self._part, "see"):
                self._part.see(run)

    def moves(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """How many coordinates go down and up with the client's next task, if not those of its part of the model."""
        if not hasattr(self._part, "moves"):
            return None
        with calling("aggregator", self._part):
            moves: tuple[int, int] | None = self._part.moves(client, assignment)
        return moves

    def add(self, contribution: Contribution) -> None:
        with calling("aggregator", self._part):
            self._part.add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        with calling("aggregator", self._part):
            delta, moved = self._part.finish(totals)
        for name, given, kind in (("delta", delta, np.float32), ("moved", moved, np.bool_)):
            array = isinstance(given, np.ndarray)
            if not array or given.shape != (self._size,) or given.dtype != kind:
                got = f"{given.dtype} {given.shape}" if array else f"a {type(given).__name__}"
                raise ValueError(f"{self._name} gave {name} as {got}; takes {np.dtype(kind)} {(self._size,)}")
        if not at_most(delta, LARGEST) and (wrong := unfit(largest_of(delta[moved]))):  # elsewhere it may be anything
            raise ValueError(f"{self._name} gave a delta with {wrong}")
        return delta, moved

    @property
    def _name(self) -> str:
        return f"aggregator: {type(self._part).__name__}"

    def state(self) -> State:
        return saved(self._part)

    def restore(self, state: State) -> None:
        self._part.restore(state)
