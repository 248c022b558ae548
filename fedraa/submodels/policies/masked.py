"""Policies of element-wise masks over the blocks of a model, or over its current weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.rng import generator
from fedraa.submodels import masks
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.blocks import find_maskable_names
from fedraa.submodels.policies.policy import (
    Capacities,
    Pure,
    RoundContext,
    RunContext,
    SubmodelPolicy,
    SubmodelSampler,
    WithCapacities,
)
from fedraa.submodels.traced import Traced

T = TypeVar("T")

MAX_LABELLED_PARTS = 62
"""Maximum number of parts, because each part is one bit of an int64."""
MAX_RANKED_PARTS = 127
"""Maximum number of parts, because the number of a part is stored as int8."""


@dataclass(frozen=True)
class FourWay(SubmodelPolicy):
    """SubDisMO: in each round the parameters of the blocks are split at random into disjoint parts.

    All clients share the split. The first half of the clients train one part each, the others two. Parameters outside
    the blocks always train.

    Attributes:
        parts: Number of disjoint parts of a split.
    """

    parts: Annotated[int, Field(ge=2, le=MAX_LABELLED_PARTS)] = 4

    full_width: ClassVar[bool] = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        names = find_maskable_names(run.traced)
        split = _Last(
            lambda context: masks.random_parts(
                run.traced, self.parts, names, generator(run.seed, "split", context.round)
            )
        )

        def draw_assignment(context: RoundContext) -> Assignment:
            count = 1 if context.client < run.clients // 2 else 2
            rng = generator(run.seed, "parts", context.round, context.client)
            chosen = rng.choice(self.parts, count, replace=False)
            mask = np.logical_or.reduce([split(context)[part] for part in chosen])
            return Assignment(int((1 << chosen).sum()), whole, mask, sends_mask=False)

        return Pure(draw_assignment)


@dataclass(frozen=True)
class Pruned(WithCapacities):
    """OAP: each client prunes the current global model to its share of largest weights, tensor by tensor.

    Shares are whole quarters, as in the paper's settings.

    Attributes:
        capacities: Share of the weights that each client keeps.
        parts: Parts into which each tensor is ranked by magnitude.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((1.0, 0.75, 0.5)))
    parts: Annotated[int, Field(ge=1, le=MAX_RANKED_PARTS)] = 4

    full_width: ClassVar[bool] = True
    shares: ClassVar[tuple[float, ...]] = (1.0, 0.75, 0.5, 0.25)

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        names = find_maskable_names(run.traced)
        for level in self.capacities.levels:
            if not (level * self.parts).is_integer():
                expected = f"shares that are whole parts of {self.parts}, such as 0.5 or 0.75"
                raise InputError("capacities", got=level, expected=expected)
        ranks = _Last(lambda context: rank_parts(run.traced, context.params, names, self.parts))

        def draw_assignment(context: RoundContext) -> Assignment:
            ratio = self.capacities.of(context.client, context.round, run.seed)
            kept = int(ratio * self.parts)
            if kept == self.parts:
                return Assignment(self.parts, whole)
            part = ranks(context)
            return Assignment(kept, whole, (part < 0) | (part >= self.parts - kept))

        return Pure(draw_assignment)


@dataclass
class _Last(Generic[T]):
    """A cache of a value that is computed once per round, because all clients of the round share it."""

    make: Callable[[RoundContext], T]
    round: int = -1
    value: T | None = None

    def __call__(self, context: RoundContext) -> T:
        if self.value is None or self.round != context.round:
            self.value = self.make(context)
            self.round = context.round
        return self.value


def rank_parts(traced: Traced, params: Vector, names: Sequence[str], parts: int) -> npt.NDArray[np.int8]:
    """Return the part of each coordinate: int8 [d].

    The coordinates of a tensor form `parts` equal parts by rank of |value|. Part 0 holds the smallest values.
    Coordinates of tensors that are not in `names` get -1.

    Args:
        traced: The traced model.
        params: The model [d].
        names: Tensors to rank.
        parts: Number of parts.
    """
    part = np.full(traced.size, -1, np.int8)
    for name, shape, offset in zip(traced.names, traced.shapes, traced.offsets, strict=True):
        if name in names:
            size = int(np.prod(shape))
            order = np.argsort(np.abs(params[offset : offset + size]), kind="stable")
            part[offset + order] = np.arange(size) * parts // size
    return part
