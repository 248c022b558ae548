"""RA-Fed's and RAM-Fed's policy: the parameters are divided into regions, and each client trains some regions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from fedraa.errors import InputError
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.masked import MAX_LABELLED_PARTS
from fedraa.submodels.policies.policy import Pure, RoundContext, RunContext, SubmodelPolicy, SubmodelSampler
from fedraa.submodels.traced import Traced


@dataclass(frozen=True)
class Arbitrary(SubmodelPolicy):
    """RA-Fed, RAM-Fed: the parameters consist of `parts` regions (Definition 1), and clients mask the received model.

    With `regions` "hidden" every parameter is in one region: that of its hidden unit. Each of 4 regions then has a
    quarter of the parameters at any depth of the model. The output layer is divided by its inputs, because with a
    division by class a client would train scores of classes that it lacks.

    With `regions` "units" the units of every width group are divided, and regions are drawn independently for every
    group. A client trains the weights between the drawn units. At level L this is a fourth of a matrix between two
    hidden layers. Over time all parts of the matrix are trained.

    At level L a client trains 2 of 4 regions, at level S one. At level MIX, half of the clients train as at level L and
    the others as at level S. These clients are drawn once per run. Round 0 trains everything. In every
    `uncovered_every`-th round (0: never) all clients train the same regions, drawn for that round, so that no client
    covers the others.

    Attributes:
        level: L, S or MIX: the number of regions that a client trains.
        parts: Number of regions.
        uncovered_every: Rounds between two rounds in which all clients train the same regions; 0 for none.
        regions: hidden or units: the form of the regions.
    """

    level: Literal["L", "S", "MIX"] = "L"
    parts: Annotated[int, Field(ge=1, le=MAX_LABELLED_PARTS)] = 4
    uncovered_every: NonNegativeInt = 10
    regions: Literal["hidden", "units"] = "hidden"

    full_width: ClassVar[bool] = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole = run.whole()
        large = self._draw_large_clients(run)
        masked = self._make_masker(run)

        def draw_assignment(context: RoundContext) -> Assignment:
            if context.round == 0:
                return Assignment(0, whole)
            count = max(1, self.parts // 2) if context.client in large else 1
            stream: str = "regions"
            index: tuple[int, ...] = (context.round, context.client)
            if self.uncovered_every and context.round % self.uncovered_every == 0:
                # All clients of this round draw the same regions.
                stream, index = "gap", (context.round,)
            order = generator(run.seed, stream, *index).permutation(self.parts)
            chosen = order[:count]
            return Assignment(int((1 << chosen).sum()), whole, masked(chosen, *index), sends_mask=False)

        return Pure(draw_assignment)

    def _draw_large_clients(self, run: RunContext) -> frozenset[int]:
        """Return the clients that train half of the regions."""
        if self.level == "L":
            return frozenset(range(run.clients))
        if self.level == "S":
            return frozenset()
        return frozenset(generator(run.seed, "levels").permutation(run.clients)[: run.clients // 2].tolist())

    def _make_masker(self, run: RunContext) -> Callable[..., Mask]:
        """Return a function that makes the mask of some regions.

        Its arguments are the regions, the round, and the client unless all clients of the round share the mask.
        """
        if self.regions == "hidden":
            region_of = masks.hidden_parts(run.traced, self.parts)
            return lambda chosen, *when: np.isin(region_of, chosen)
        run.check_units(self.parts, InputError("submodel", "every group needs a unit for each region", got=self.parts))
        return lambda chosen, *when: _between_units(
            run.traced, self.parts, len(chosen), generator(run.seed, "regions of units", *when)
        )


def _between_units(traced: Traced, parts: int, count: int, rng: np.random.Generator) -> Mask:
    """Return the mask of the weights between the units of `count` regions, drawn separately in every group.

    Args:
        traced: The traced model.
        parts: Regions per group.
        count: Regions to keep.
        rng: Source of random numbers.
    """
    cut = indices.make_blocks(traced, parts)
    drawn = [np.sort(rng.permutation(parts)[:count]) for _ in traced.groups]
    kept = tuple(np.concatenate([cut[part][g] for part in mine]) for g, mine in enumerate(drawn))
    mask = np.zeros(traced.size, bool)
    mask[traced.flat_index(kept)] = True
    return mask
