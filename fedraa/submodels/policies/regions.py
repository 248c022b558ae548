"""RA-Fed and RAM-Fed: the parameters are divided into regions. Each client trains some of these regions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from fedraa.components.field_checks import check_component_fields
from fedraa.errors import InputError
from fedraa.messages import Mask
from fedraa.numbers import Count, round_down
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.masked import MAX_LABELLED_PARTS
from fedraa.submodels.policies.policy import (
    FEWER_PARTS,
    Capacities,
    Pure,
    RoundContext,
    RunContext,
    SubmodelPolicy,
    SubmodelSampler,
    make_capacities,
)
from fedraa.submodels.traced import Traced


@dataclass(frozen=True)
class Arbitrary(SubmodelPolicy):
    """RA-Fed, RAM-Fed: the parameters are divided into regions. Each client trains some of them (Definition 1).

    With level L, a client trains half of the regions. With level S, it trains one region. With level MIX, half of the
    clients train at level L and the other half at level S. In round 0, all clients train all regions. As in the paper,
    clients receive and compute the whole model.

    `capacities` replaces the level. A client with capacity r then receives and trains only r * `parts` regions, at
    least one.

    There are two forms of regions:

    - hidden: A region has the parameters of some hidden units. The output layer is divided by its inputs, because a
      client should not train the scores of classes that it does not have.
    - units: A region has some units of a width group. Regions are drawn separately for every group. A client trains the
      weights between the units in its regions.

    Attributes:
        level: The level of the clients: L, S or MIX.
        parts: Number of regions.
        uncovered_every: Once per this number of rounds, all clients that have the same number of regions train the same
            ones, and no client trains the other regions, unless a client has all. 0 turns this off.
        regions: The form of the regions: hidden or units.
        redraw: False to draw the clients of level L only once per run. Only for level MIX.
        capacities: The fraction of the model for each client, instead of the level.
    """

    level: Literal["L", "S", "MIX"] = "L"
    parts: Annotated[int, Field(ge=1, le=MAX_LABELLED_PARTS)] = 4
    uncovered_every: NonNegativeInt = 10
    regions: Literal["hidden", "units"] = "hidden"
    redraw: bool = True
    capacities: Capacities | None = None

    full_width: ClassVar[bool] = True
    shares: ClassVar[tuple[float, ...]] = (1.0, 0.75, 0.5, 0.25)

    def __post_init__(self) -> None:
        if self.capacities is None:
            return
        object.__setattr__(self, "capacities", make_capacities(self.capacities))
        if self.level != "L":
            problem = "a level and capacities both set the number of regions that a client trains"
            raise InputError("capacities", problem, hint="leave out submodel.level")

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        # All clients of a round share the draw.
        draw_large_clients = lru_cache(maxsize=1)(partial(self._draw_large_clients, run))
        masked = self._make_masker(run)

        def count_regions(context: RoundContext) -> int:
            if self.capacities is not None:
                return max(1, round_down(self.capacities.of(context.client, context.round, run.seed) * self.parts))
            when = (context.round,) if self.redraw and self.level == "MIX" else ()
            if context.client not in draw_large_clients(*when):
                return 1
            return max(1, self.parts // 2)

        def draw_assignment(context: RoundContext) -> Assignment:
            count = count_regions(context)
            if context.round == 0 or (self.capacities is not None and count == self.parts):
                return Assignment(0, whole)
            stream: str = "regions"
            index: tuple[int, ...] = (context.round, context.client)
            if self.uncovered_every and context.round % self.uncovered_every == 0:
                # The seed is the same for all clients, so they draw the same regions.
                stream, index = "gap", (context.round,)
            order = generator(run.seed, stream, *index).permutation(self.parts)
            chosen = order[:count]
            label = int((1 << chosen).sum())
            mask = masked(chosen, *index)
            if self.capacities is None:
                return Assignment(label, whole, mask, sends_mask=False)
            return Assignment(label, whole, mask, work=float(mask.mean()))

        return Pure(draw_assignment)

    def _draw_large_clients(self, run: RunContext, *when: int) -> frozenset[int]:
        """Return the clients that train half of the regions (level L).

        With level MIX, the result is a random half of the clients. The seed and `when` determine this half.
        """
        if self.level == "L":
            return frozenset(range(run.clients))
        if self.level == "S":
            return frozenset()
        order = generator(run.seed, "levels", *when).permutation(run.clients)
        return frozenset(order[: run.clients // 2].tolist())

    def _make_masker(self, run: RunContext) -> Callable[..., Mask]:
        """Return a function that creates the mask [d] of some regions.

        The arguments of the function are the regions, the round and the client. Without a client, the mask is the same
        for all clients.
        """
        if self.regions == "hidden":
            _check_parts(run, self.parts)
            region_of = masks.hidden_parts(run.traced, self.parts)
            return lambda chosen, *when: np.isin(region_of, chosen)
        run.check_parts(self.parts, "submodel", "each region needs a unit of every group", got=self.parts)
        return lambda chosen, *when: _between_units(
            run.traced, self.parts, len(chosen), generator(run.seed, "regions of units", *when)
        )


@dataclass(frozen=True)
class RegionSchedule(SubmodelPolicy):
    """RA-Fed and RAM-Fed with a fixed schedule of regions (RAM-Fed, Figures 3 and 4).

    In round 0, all clients train all regions. In a later round, each client trains one region, and `trained` regions
    have clients. One of these regions has most of the clients. Each of the others has `coverage` clients.

    A client moves to the next region after `spell` rounds. It returns to a region tau = (parts - 1) * spell + 1 rounds
    after its last round with this region (Assumption 6).

    Attributes:
        coverage: Smallest number of clients that train a region with clients, Gamma*.
        trained: Number of regions that have clients in a round, S*.
        tau: Largest number of rounds until a client trains a region again. It determines `spell`.
        parts: Number of regions.
    """

    coverage: Count = 2
    trained: Count = 4
    tau: Count = 4
    parts: Annotated[int, Field(ge=2, le=MAX_LABELLED_PARTS)] = 4

    full_width: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_component_fields(self, "submodel")
        if self.trained > self.parts:
            raise InputError("trained", got=self.trained, expected=f"at most {self.parts}, the number of regions")
        if self.tau < self.parts:
            problem = f"a client trains one region in a round, and needs {self.parts} rounds to train all regions"
            raise InputError("tau", problem, got=self.tau, expected=f"{self.parts} or more")

    @property
    def spell(self) -> int:
        """Number of consecutive rounds in which a client trains the same region."""
        return (self.tau - 1) // (self.parts - 1)

    def bind(self, run: RunContext) -> SubmodelSampler:
        if self.coverage * self.trained > run.clients:
            problem = f"{self.trained} regions with {self.coverage} clients each need more than {run.clients} clients"
            raise InputError(
                "submodel.coverage", problem, got=self.coverage, hint="use a smaller coverage or more clients"
            )
        _check_parts(run, self.parts)
        whole = run.whole()
        region_of = masks.hidden_parts(run.traced, self.parts)
        crowd = run.clients - self.coverage * (self.trained - 1)

        def draw_assignment(context: RoundContext) -> Assignment:
            if context.round == 0:
                return Assignment(0, whole)
            first = 0
            if context.client >= crowd:
                first = 1 + (context.client - crowd) // self.coverage
            region = (first + (context.round - 1) // self.spell) % self.parts
            return Assignment(1 << region, whole, region_of == region, sends_mask=False)

        return Pure(draw_assignment)


def _check_parts(run: RunContext, parts: int) -> None:
    """Raise an InputError if some region would have no weight of some layer."""
    run.check_share(1 / parts, run.traced.names, "submodel.parts", got=parts, hint=FEWER_PARTS)


def _between_units(traced: Traced, parts: int, count: int, rng: np.random.Generator) -> Mask:
    """Draw `count` regions of units in each width group. Return a mask of the weights that connect drawn units.

    Args:
        traced: The traced model.
        parts: Number of regions in each width group (units that are cut together, such as the neurons of a layer).
        count: Number of regions to draw in each group.
        rng: Source of random numbers.
    """
    cut = indices.make_blocks(traced, parts)
    drawn = [np.sort(rng.permutation(parts)[:count]) for _ in traced.groups]
    kept = tuple(np.concatenate([cut[part][g] for part in mine]) for g, mine in enumerate(drawn))
    mask = np.zeros(traced.size, bool)
    mask[traced.flat_index(kept)] = True
    return mask
