"""A wrapper that checks the results of an aggregator."""

from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.messages import Mask, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.finite import LARGEST, at_most, describe_unfit, find_largest


class BoundAggregator(Stateful):
    """A wrapper that checks the results of the aggregator of one run.

    The aggregator needs the methods `bind`, `add` and `finish`. The methods `see` and `traffic_sizes` are optional. If
    the aggregator raises an error or returns a wrong result, the wrapper raises an InputError that names the
    aggregator's class.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_part",)

    def __init__(self, part: Any, run: RunContext) -> None:
        self._size = run.traced.size
        self._part = part.bind(self._size, run.clients)
        with convert_errors("aggregator", self._part):
            if hasattr(self._part, "see"):
                self._part.see(run)

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        """Return the result of `Aggregator.traffic_sizes`, or None if the aggregator lacks this method."""
        if not hasattr(self._part, "traffic_sizes"):
            return None
        with convert_errors("aggregator", self._part):
            sizes: Any = self._part.traffic_sizes(client, assignment)
        if sizes is None:
            return None
        is_pair = isinstance(sizes, tuple) and len(sizes) == 2
        if not is_pair or not all(isinstance(size, int | np.integer) and 0 <= size <= self._size for size in sizes):
            problem = f"{type(self._part).__name__}.traffic_sizes returned a wrong value"
            expected = f"None, or two numbers of coordinates from 0 to {self._size}"
            raise InputError("aggregator", problem, got=sizes, expected=expected)
        return int(sizes[0]), int(sizes[1])

    @property
    def needs_reports(self) -> bool:
        """True if the model stays unchanged in a round in which no client reported."""
        return getattr(self._part, "needs_reports", True)

    @property
    def unprotected(self) -> int | None:
        """The number of coordinates without a robust result in the last round, because too few clients trained them.

        It is None for aggregators that are not robust.
        """
        number: int | None = getattr(self._part, "unprotected", None)
        return number

    def add(self, contribution: ClientDelta) -> None:
        with convert_errors("aggregator", self._part):
            self._part.add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        with convert_errors("aggregator", self._part):
            result: Any = self._part.finish(totals)
        if not isinstance(result, tuple) or len(result) != 2:
            problem = f"{type(self._part).__name__}.finish returned a wrong value"
            expected = "the delta [d] and the mask [d] of the coordinates that it moves"
            raise InputError("aggregator", problem, got=result, expected=expected)
        delta, moved = result
        for name, array, kind in (("delta", delta, np.float32), ("moved", moved, np.bool_)):
            if not isinstance(array, np.ndarray) or array.shape != (self._size,) or array.dtype != kind:
                problem = f"{type(self._part).__name__}.finish returned a wrong value as {name}"
                expected = f"an array of {np.dtype(kind)} [{self._size}]"
                raise InputError("aggregator", problem, got=array, expected=expected)
        if not at_most(delta, LARGEST):
            # Values outside of the mask are never used, so they may be infinite or NaN.
            wrong = describe_unfit(find_largest(delta[moved]))
            if wrong:
                raise InputError("aggregator", f"{type(self._part).__name__}.finish returned a delta with {wrong}")
        return delta, moved
