"""The policy of partial backward passes: clients train the last layers of the model."""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np

from fedraa.submodels.assignment import Assignment
from fedraa.submodels.meter import find_backward_layers, measure_layers
from fedraa.submodels.policies.policy import Capacities, Pure, RunContext, SubmodelSampler, WithCapacities


@dataclass(frozen=True)
class LastLayers(WithCapacities):
    """SALF: a client runs the whole forward pass, and the backward pass from the last layer as far as time allows.

    The capacity of a client is the work that it can finish before the deadline, as a share of the FLOPs for training
    the whole model. The client trains the most last layers whose work does not exceed the share, at least one. The
    other layers keep the values that it received. With capacities auto, the deadline is the time in which the fastest
    device trains the whole model. A layer is a module with its tensors, and the backward pass determines the order.

    Attributes:
        capacities: Each client's share of the work.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.85, 0.7, 0.55, 0.4)))

    full_width: ClassVar[bool] = True
    shares: ClassVar[tuple[float, ...]] = tuple((np.arange(20, 0, -1) / 20).tolist())

    @property
    def cuts(self) -> bool:
        return False

    def bind(self, run: RunContext) -> SubmodelSampler:
        traced = run.traced
        assert run.example is not None
        example = run.example
        whole = run.whole()
        layers = find_backward_layers(traced, example)
        sizes = [int(np.prod(shape)) for shape in traced.shapes]

        @cache
        def measure_work(count: int) -> float:
            """Return the FLOPs of training the last `count` layers, as a share of those of all layers."""
            trained = {name for layer in layers[:count] for name in layer}
            return measure_layers(traced, trained, example).flops

        @cache
        def assign_layers(share: float) -> Assignment:
            limit = share * measure_work(len(layers))
            count = max(1, bisect_right(range(1, len(layers) + 1), limit, key=measure_work))
            if count == len(layers):
                return Assignment(count, whole)
            trained = {name for layer in layers[:count] for name in layer}
            mask = np.repeat([name in trained for name in traced.names], sizes)
            work = measure_work(count) / measure_work(len(layers))
            return Assignment(count, whole, mask, sends_mask=False, keeps_rest=True, mask_by_label=True, work=work)

        return Pure(lambda context: assign_layers(self.capacities.of(context.client, context.round, run.seed)))
