"""Policies in which clients train single weights: FourWay (SubDisMO) and Pruned (OAP)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.numbers import format_count
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.blocks import find_maskable_names, find_removable_blocks
from fedraa.submodels.policies.policy import (
    FEWER_PARTS,
    LARGER_CAPACITY,
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
Parts = npt.NDArray[np.int64]
MakeAssignment = Callable[[RoundContext, Parts], Assignment]

MAX_LABELLED_PARTS = 62
"""Maximum number of parts, because each part is one bit of an int64."""
MAX_RANKED_PARTS = 127
"""Maximum number of parts, because the number of a part is stored as int8."""


@dataclass(frozen=True)
class FourWay(SubmodelPolicy):
    """SubDisMO: each round divides the parameters of the repeated blocks at random into disjoint parts.

    The division is the same for all clients. Each client in the first half of the clients trains one part. Each client
    in the second half trains two parts. All clients train the parameters outside of the repeated blocks.

    The paper does not define the parts, so there are three forms:

    - elements: A part has single weights. This saves traffic, but no computing.
    - units: A part has attention heads and hidden neurons. All other units are cut from the client's model.
    - blocks: A part has whole blocks. A block that a client skips returns its input. This explains Table 7.

    Attributes:
        parts: Number of disjoint parts.
        form: The form of the parts: elements, units or blocks.
    """

    parts: Annotated[int, Field(ge=2, le=MAX_LABELLED_PARTS)] = 4
    form: Literal["elements", "units", "blocks"] = "elements"

    @property
    def full_width(self) -> bool:
        return self.form != "units"

    def bind(self, run: RunContext) -> SubmodelSampler:
        if self.form == "units":
            make_assignment = self._cut_units(run)
        elif self.form == "blocks":
            make_assignment = self._leave_out_blocks(run)
        else:
            make_assignment = self._mask_elements(run)

        def draw_assignment(context: RoundContext) -> Assignment:
            count = 1 if context.client < run.clients // 2 else 2
            rng = generator(run.seed, "parts", context.round, context.client)
            return make_assignment(context, rng.choice(self.parts, count, replace=False))

        return Pure(draw_assignment)

    def _mask_elements(self, run: RunContext) -> MakeAssignment:
        whole = run.whole()
        names = find_maskable_names(run.traced)
        run.check_share(1 / self.parts, names, "submodel.parts", got=self.parts, hint=FEWER_PARTS)
        split = _Last(
            lambda context: masks.random_parts(
                run.traced, self.parts, names, generator(run.seed, "split", context.round)
            )
        )

        def make_assignment(context: RoundContext, chosen: Parts) -> Assignment:
            mask = np.logical_or.reduce([split(context)[part] for part in chosen])
            return Assignment(label_parts(chosen), whole, mask, sends_mask=False)

        return make_assignment

    def _cut_units(self, run: RunContext) -> MakeAssignment:
        run.check_units()
        names = set(find_maskable_names(run.traced))
        inner = [names.issuperset(entry.tensor for entry in group.entries) for group in run.traced.groups]
        sizes = [group.size for group, is_inner in zip(run.traced.groups, inner, strict=True) if is_inner]
        if min(sizes, default=0) < self.parts:
            problem = f"some layer of the blocks can be cut into only {format_count(min(sizes, default=0), 'unit')}"
            raise InputError("submodel", problem, got=self.parts, hint="set form to elements, or use fewer parts")
        split = _Last(
            lambda context: indices.deal_disjoint(run.traced, self.parts, generator(run.seed, "split", context.round))
        )

        def make_assignment(context: RoundContext, chosen: Parts) -> Assignment:
            kept = list(run.traced.full())
            for g in np.flatnonzero(inner):
                kept[g] = np.sort(np.concatenate([split(context)[part][g] for part in chosen]))
            return run.units(tuple(kept), label_parts(chosen))

        return make_assignment

    def _leave_out_blocks(self, run: RunContext) -> MakeAssignment:
        assert run.example is not None
        whole = run.whole()
        blocks = find_removable_blocks(run.traced, run.example)
        if len(blocks) < self.parts:
            kind = type(run.traced.module).__name__
            problem = f"{kind} has {format_count(len(blocks), 'block')} that a client can skip"
            expected = f"at least {self.parts}, the number of parts"
            raise InputError("submodel", problem, expected=expected, hint="set form to elements or units")

        def make_assignment(context: RoundContext, chosen: Parts) -> Assignment:
            order = generator(run.seed, "split", context.round).permutation(len(blocks))
            split = np.array_split(order, self.parts)
            mask = np.ones(run.traced.size, bool)
            work = 1.0
            for b in np.concatenate([split[part] for part in range(self.parts) if part not in chosen]):
                mask[blocks[b].place] = False
                work -= blocks[b].work
            return Assignment(label_parts(chosen), whole, mask, work=work)

        return make_assignment


def label_parts(chosen: Parts) -> int:
    """Return an integer that identifies the chosen parts: bit i is 1 if part i is chosen."""
    return int((1 << chosen).sum())


@dataclass(frozen=True)
class Pruned(WithCapacities):
    """OAP: each client trains the largest weights of every tensor of the current model.

    Each capacity must be a multiple of 1 / `parts`. By default it is a multiple of a quarter, like in the paper.

    Attributes:
        capacities: Fraction of the weights that each client trains.
        parts: Number of equal parts of each tensor. Part 0 has the weights with the smallest absolute values.
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
            run.check_share(level, names, "capacities", got=level, hint=LARGER_CAPACITY)
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
    """A cache for one value, which is the same for all clients of a round. In a new round it is computed again."""

    make: Callable[[RoundContext], T]
    round: int = -1
    value: T | None = None

    def __call__(self, context: RoundContext) -> T:
        if self.value is None or self.round != context.round:
            self.value = self.make(context)
            self.round = context.round
        return self.value


def rank_parts(traced: Traced, params: Vector, names: Sequence[str], parts: int) -> npt.NDArray[np.int8]:
    """Divide each named tensor into parts by absolute value. Return the part of each parameter, int8 [d].

    The parts of a tensor are equally large. Part 0 has the smallest absolute values. Parameters of other tensors get
    -1.

    Args:
        traced: The traced model.
        params: The model [d].
        names: Names of the tensors to divide.
        parts: Number of parts of each tensor.
    """
    part = np.full(traced.size, -1, np.int8)
    for name, place in traced.places.items():
        if name in names:
            order = np.argsort(np.abs(params[place]), kind="stable")
            part[place][order] = np.arange(len(order)) * parts // len(order)
    return part
