"""RA-Fed's and RAM-Fed's policy: the parameters are divided into regions, and each client trains some regions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from fedraa.errors import InputError
from fedraa.numbers import Count
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.masked import MAX_LABELLED_PARTS
from fedraa.submodels.policies.policy import (
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
    """RA-Fed, RAM-Fed: the parameters are divided into `parts` regions (Definition 1), and clients train some of them.

    With `regions` "hidden" every parameter is in the region of its hidden unit. Each of 4 regions then has a quarter of
    the parameters of every layer. The output layer is divided by its inputs. If it were divided by classes, a client
    would train the scores of classes that it does not have.

    With `regions` "units" the units of every width group are divided, and regions are drawn independently for every
    group. A client trains the weights between the drawn units. At level L this is a quarter of a matrix between two
    hidden layers. Over time all parts of the matrix are trained.

    At level L a client trains half of the regions (2 of 4), at level S one region. At level MIX, half of the clients
    train as at level L and the other half as at level S. The clients of level L are drawn once per run, or in every
    round with `redraw`. In round 0 all clients train everything. In every `uncovered_every`-th round (0: never) all
    clients train the same regions, which are drawn for this round, so that no client trains the other regions.

    With `capacities`, a client's device sets the number of its regions instead of the level. A client of capacity r
    trains r times `parts` regions, rounded down, and at least one. It receives only these regions, and its cost is the
    cost of the parameters that it trains. Without `capacities` clients receive the whole model, as in the paper, and
    compute all of it.

    Attributes:
        level: The number of regions that a client trains: L, S or MIX.
        parts: Number of regions.
        uncovered_every: The number of rounds from one round in which all clients train the same regions to the next
            such round; 0 if there is no such round.
        regions: The form of the regions: hidden or units.
        redraw: True to draw the clients that train as at level L again in every round. Only for level MIX.
        capacities: Each client's share of the model, which replaces the level.
    """

    level: Literal["L", "S", "MIX"] = "L"
    parts: Annotated[int, Field(ge=1, le=MAX_LABELLED_PARTS)] = 4
    uncovered_every: NonNegativeInt = 10
    regions: Literal["hidden", "units"] = "hidden"
    redraw: bool = False
    capacities: Capacities | None = None

    shares: ClassVar[tuple[float, ...]] = (1.0, 0.75, 0.5, 0.25)

    def __post_init__(self) -> None:
        if self.capacities is None:
            return
        object.__setattr__(self, "capacities", make_capacities(self.capacities))
        if self.level != "L" or self.redraw:
            problem = "a level and capacities both set the number of regions that a client trains"
            raise InputError("capacities", problem, hint="leave out submodel.level and submodel.redraw")

    full_width: ClassVar[bool] = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        fixed_clients = self._draw_large_clients(run)
        masked = self._make_masker(run)

        def count_regions(context: RoundContext) -> int:
            if self.capacities is not None:
                return max(1, int(self.capacities.of(context.client, context.round, run.seed) * self.parts + 1e-9))
            large = fixed_clients
            if self.redraw:
                large = self._draw_large_clients(run, context.round)
            if context.client not in large:
                return 1
            return max(1, self.parts // 2)

        def draw_assignment(context: RoundContext) -> Assignment:
            count = count_regions(context)
            if context.round == 0 or (self.capacities is not None and count == self.parts):
                return Assignment(0, whole)
            stream: str = "regions"
            index: tuple[int, ...] = (context.round, context.client)
            if self.uncovered_every and context.round % self.uncovered_every == 0:
                # The seed of this draw does not include the client, so that all clients of this round draw the same
                # regions.
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
        """Return the clients that train half of the regions. `when` is the round if they are drawn in every round."""
        if self.level == "L":
            return frozenset(range(run.clients))
        if self.level == "S":
            return frozenset()
        order = generator(run.seed, "levels", *when).permutation(run.clients)
        return frozenset(order[: run.clients // 2].tolist())

    def _make_masker(self, run: RunContext) -> Callable[..., Mask]:
        """Return a function that makes the mask of some regions.

        Its arguments are the regions and the round. A third argument is the client, unless all clients share the mask.
        """
        if self.regions == "hidden":
            region_of = masks.hidden_parts(run.traced, self.parts)
            return lambda chosen, *when: np.isin(region_of, chosen)
        run.check_units(self.parts, InputError("submodel", "every group needs a unit for each region", got=self.parts))
        return lambda chosen, *when: _between_units(
            run.traced, self.parts, len(chosen), generator(run.seed, "regions of units", *when)
        )


@dataclass(frozen=True)
class RegionSchedule(SubmodelPolicy):
    """RA-Fed and RAM-Fed with a fixed schedule of regions instead of random draws (RAM-Fed, Figures 3 and 4).

    A client trains one of the regions of `Arbitrary`. In round 0 all clients train everything. From then on, S*
    regions (`trained`) are trained in each round. One of them has most of the clients; each of the others has Gamma*
    clients (`coverage`, the least coverage). After every `spell` rounds each client moves to the next region. A client
    therefore returns to a region tau = (parts - 1) * spell + 1 rounds after it last trained this region (Assumption 6).

    Attributes:
        coverage: Smallest number of clients of a trained region, Gamma*.
        trained: Number of regions that are trained in a round, S*.
        tau: Largest number of rounds until a client trains a region again. `spell` follows from tau.
        parts: Number of regions.
    """

    coverage: Count = 2
    trained: Count = 4
    tau: Count = 4
    parts: Annotated[int, Field(ge=2, le=MAX_LABELLED_PARTS)] = 4

    full_width: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.trained > self.parts:
            raise InputError("trained", got=self.trained, expected=f"at most {self.parts}, the number of regions")
        if self.tau < self.parts:
            problem = f"a client trains one region in a round, and needs {self.parts} rounds to train all regions"
            raise InputError("tau", problem, got=self.tau, expected=f"{self.parts} or more")

    @property
    def spell(self) -> int:
        """The number of consecutive rounds in which a client trains the same region."""
        return (self.tau - 1) // (self.parts - 1)

    def bind(self, run: RunContext) -> SubmodelSampler:
        if self.coverage * self.trained > run.clients:
            problem = f"{self.trained} regions with {self.coverage} clients each need more than {run.clients} clients"
            raise InputError(
                "submodel.coverage", problem, got=self.coverage, hint="give a smaller coverage or more clients"
            )
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


def _between_units(traced: Traced, parts: int, count: int, rng: np.random.Generator) -> Mask:
    """Return the mask of the weights between the units of `count` regions, which are drawn separately in every group.

    Args:
        traced: The traced model.
        parts: Number of regions in each group.
        count: Number of regions in the mask.
        rng: Source of random numbers.
    """
    cut = indices.make_blocks(traced, parts)
    drawn = [np.sort(rng.permutation(parts)[:count]) for _ in traced.groups]
    kept = tuple(np.concatenate([cut[part][g] for part in mine]) for g, mine in enumerate(drawn))
    mask = np.zeros(traced.size, bool)
    mask[traced.flat_index(kept)] = True
    return mask
