"""SALF: clients train only the last layers. The backward pass of a client therefore ends early."""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from fedraa.submodels.assignment import Assignment
from fedraa.submodels.meter import find_backward_layers, measure_layers
from fedraa.submodels.policies.policy import (
    TWENTIETHS,
    Capacities,
    Pure,
    RunContext,
    SubmodelSampler,
    WithCapacities,
)


class LayerAssignments:
    """A cache of assignments. In an assignment a client trains only the last layers of the model, such as the last two.

    A layer is a module with its own parameters. The layer that the backward pass reaches first is the last layer.
    """

    def __init__(self, run: RunContext) -> None:
        assert run.example is not None
        self._run = run
        self._example = run.example
        self._layers = find_backward_layers(run.traced, run.example)
        self._work = cache(self._measure_work)
        self._assign = cache(self._make_assignment)

    def within(self, share: float) -> Assignment:
        """Return the largest assignment that takes at most the fraction `share` of the model's FLOPs.

        It has at least one layer, even if this layer takes more.
        """
        total = len(self._layers)
        limit = share * self._work(total)
        return self._assign(max(1, bisect_right(range(1, total + 1), limit, key=self._work)))

    def _trained(self, count: int) -> set[str]:
        names: set[str] = set()
        return names.union(*self._layers[:count])

    def _measure_work(self, count: int) -> float:
        """Return the FLOPs of a whole forward pass and a backward pass over the last `count` layers."""
        return measure_layers(self._run.traced, self._trained(count), self._example).flops

    def _make_assignment(self, count: int) -> Assignment:
        traced = self._run.traced
        if count == len(self._layers):
            return Assignment(count, self._run.whole())
        return Assignment(
            count,
            self._run.whole(),
            traced.mask_of(self._trained(count)),
            sends_mask=False,
            keeps_rest=True,
            mask_by_label=True,
            work=self._work(count) / self._work(len(self._layers)),
        )


@dataclass(frozen=True)
class LastLayers(WithCapacities):
    """SALF: a client trains only the last layers. It runs the whole forward pass, but only a part of the backward pass.

    The capacity of a client limits the number of these layers. A client always trains at least one layer. If
    `capacities` is auto, the deadline is the time in which the fastest device trains the whole model.

    Attributes:
        capacities: The fraction of the model's FLOPs that each client can compute before the deadline.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.85, 0.7, 0.55, 0.4)))

    full_width: ClassVar[bool] = True
    cuts: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = TWENTIETHS

    def bind(self, run: RunContext) -> SubmodelSampler:
        layers = LayerAssignments(run)
        return Pure(lambda context: layers.within(self.capacities.of(context.client, context.round, run.seed)))
