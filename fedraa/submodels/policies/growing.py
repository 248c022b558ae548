"""FedGMR: each client trains the largest weights of the model. The number of these weights grows over time."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedraa.errors import InputError
from fedraa.messages import Mask, Vector
from fedraa.numbers import Positive
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.blocks import find_maskable_names
from fedraa.submodels.masks import select_largest
from fedraa.submodels.policies.policy import Capacities, Pure, RoundContext, RunContext, SubmodelSampler, WithCapacities
from fedraa.submodels.traced import Traced

DENSITY_STEPS = ((0.2, 0.05), (0.4, 0.1), (0.6, 0.2), (0.8, 0.5))
"""Pairs (fraction of the time `until`, floor up to this time)."""
MIN_TENSOR_DENSITY = 0.02
"""Clients train at least this fraction of the weights in every tensor."""


@dataclass(frozen=True)
class Growing(WithCapacities):
    """FedGMR: a client trains the largest weights. The number of these weights grows over time.

    A client trains the fraction max(capacity, floor) of the weights. The floor rises with time. All weights are ranked
    together, but at least two per cent of each tensor are trained. Biases and other tensors that cannot be masked are
    always trained.

    Attributes:
        capacities: The smallest fraction of the weights for each client.
        until: A time on the run's clock. After 80 % of this time, the floor is 1.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.5, 0.2, 0.1, *[0.05] * 6)))
    until: Positive = 10.0

    full_width: ClassVar[bool] = True

    def floor(self, now: float) -> float:
        """Return the floor: the smallest fraction of the weights that any client trains at the time `now`."""
        return next((density for point, density in DENSITY_STEPS if now < point * self.until), 1.0)

    def bind(self, run: RunContext) -> SubmodelSampler:
        spans = _find_spans(run.traced)
        if not spans:
            problem = f"no part of {type(run.traced.module).__name__} can grow, because its blocks have no matrices"
            raise InputError("model", problem)

        def draw_assignment(context: RoundContext) -> Assignment:
            own = self.capacities.of(context.client, context.round, run.seed)
            density = max(own, self.floor(context.now))
            if density == 1:
                return Assignment(100, run.whole())
            return run.masked(mask_largest(context.params, spans, density), round(100 * density))

        return Pure(draw_assignment)


def mask_largest(params: Vector, spans: list[slice], density: float) -> Mask:
    """Return a mask [d] that selects the weights with the largest absolute values.

    The mask also selects all parameters outside of `spans`.

    Args:
        params: The model [d].
        spans: The slices of `params` with the weights that may be masked.
        density: Fraction of these weights that the mask selects.
    """
    ranked = np.zeros(len(params), bool)
    for span in spans:
        ranked[span] = True
    mask: Mask = ~ranked
    weights = params[ranked]
    mask[ranked] = select_largest(weights, max(1, round(density * len(weights))))
    for span in spans:
        mask[span] |= select_largest(params[span], int(np.ceil(MIN_TENSOR_DENSITY * (span.stop - span.start))))
    return mask


def _find_spans(traced: Traced) -> list[slice]:
    names = find_maskable_names(traced)
    layers = zip(traced.shapes, traced.places.items(), strict=True)
    return [place for shape, (name, place) in layers if name in names and len(shape) > 1]
