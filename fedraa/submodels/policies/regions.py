"""RA-Fed's and RAM-Fed's policy: a client trains some of the regions that the parameters are in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from fedraa.errors import InputError
from fedraa.rng import generator
from fedraa.submodels import indices, masks
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.masked import LABELLED
from fedraa.submodels.policies.policy import Pure, RoundContext, RunContext, SubmodelPolicy, SubmodelSampler
from fedraa.submodels.traced import Traced


@dataclass(frozen=True)
class Arbitrary(SubmodelPolicy):
    """RA-Fed, RAM-Fed: theta is the sum of `parts` regions (Definition 1), masked by the client.

    With `regions` "hidden" they are a partition of theta: every parameter is in one region, that of its hidden unit, so
    that a region has a quarter of the parameters however deep the model is; were the output layer's weights shared out
    by class, a client would train scores of classes that it has not. With "units" a client trains the weights between
    units that are in its regions on both sides, drawn for every width group on its own: of a matrix between two hidden
    layers a fourth at level L, and of all matrices other parts with time.

    Level L trains 2 of 4 regions, S one, MIX one or the other, each for half of the clients, which are drawn for the
    run. Round 0 trains everything; every `uncovered_every`-th round all clients train the same regions, drawn for that
    round, so that the others are covered by nobody (0: never).
    """

    level: Literal["L", "S", "MIX"] = "L"
    parts: Annotated[int, Field(ge=1, le=LABELLED)] = 4
    uncovered_every: NonNegativeInt = 10
    regions: Literal["hidden", "units"] = "hidden"

    def bind(self, run: RunContext) -> SubmodelSampler:
        whole, large, masked = run.whole(), self._large(run), self._masks(run)

        def draw(context: RoundContext) -> Assignment:
            if context.round == 0:
                return Assignment(0, whole)
            count = max(1, self.parts // 2) if context.client in large else 1
            common = self.uncovered_every and context.round % self.uncovered_every == 0
            who = () if common else (context.client,)
            order = generator(run.seed, "gap" if common else "regions", context.round, *who).permutation(self.parts)
            chosen = order[:count]
            return Assignment(int((1 << chosen).sum()), whole, masked(chosen, context.round, *who), sends_mask=False)

        return Pure(draw)

    def _large(self, run: RunContext) -> frozenset[int]:
        """Return the clients that train half of the regions."""
        if self.level == "MIX":
            return frozenset(generator(run.seed, "levels").permutation(run.clients)[: run.clients // 2].tolist())
        return frozenset(range(run.clients) if self.level == "L" else ())

    def _masks(self, run: RunContext) -> Callable[..., Mask]:
        """Return a function that makes the mask of the `chosen` regions in a round, for one client or for all."""
        if self.regions == "hidden":
            region_of = masks.hidden_parts(run.traced, self.parts)
            return lambda chosen, *when: np.isin(region_of, chosen)
        run.check_units(self.parts, InputError("submodel", "every group needs a unit for each region", got=self.parts))
        return lambda chosen, *when: _between_units(
            run.traced, self.parts, len(chosen), generator(run.seed, "regions of units", *when)
        )


def _between_units(traced: Traced, parts: int, count: int, rng: np.random.Generator) -> Mask:
    """Return the parameters between `count` regions of units of every group, drawn group by group."""
    cut = indices.blocks(traced, parts)
    drawn = [np.sort(rng.permutation(parts)[:count]) for _ in traced.groups]
    kept = tuple(np.concatenate([cut[part][g] for part in mine]) for g, mine in enumerate(drawn))
    mask = np.zeros(traced.size, bool)
    mask[traced.flat_index(kept)] = True
    return mask
