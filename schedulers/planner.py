"""A scheduler at work: the costs and the bound that it decides by, and what is wrong with a decision."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulers.bound import delay_bound
from schedulers.protocol import Costs, Ints, Scheduler, View

# Costs are models: a shard with one sample more than another must not change which fragments a device may take,
# and the bound K*, itself one of the costs, must not be missed by an ulp.
TOLERANCE = 0.01


def _to_look_at(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, through which nobody can change it."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(eq=False)
class Standing:
    """How the fragments stand, one entry each [M]: the arrays of a View, kept up to date by a server."""

    counts: Ints
    sent: Ints
    staleness: Ints
    losses: Costs

    @classmethod
    def start(cls, fragments: int) -> "Standing":
        counts, sent, staleness = (np.zeros(fragments, np.int64) for _ in range(3))
        return cls(counts, sent, staleness, np.full(fragments, np.inf))


def once(counts: Ints, before: Ints) -> None:
    """A round is over, in place: `counts` are one more than `before` where they had risen, and so is `before`."""
    counts[:] = before + (counts > before)
    before[:] = counts


@dataclass(eq=False)
class Planner:
    """Asks `scheduler` with all that a View holds; `bound` is K, planned from the costs if none is given."""

    scheduler: Scheduler
    costs: Costs = field(init=False)
    bound: float = field(init=False)

    def plan(self, costs: Costs, bound: float | None) -> None:
        """Decide by these costs c[n, j] [N, M] from now on."""
        self.costs, self.bound = costs, delay_bound(costs) if bound is None else bound
        self.scheduler.plan(self.costs, self.bound)

    def feasible(self, client: int) -> Ints:
        """The fragments whose cost for this client is within the delay bound, ascending."""
        costs = self.costs[client]
        return np.flatnonzero((costs <= self.bound * (1 + TOLERANCE)) & np.isfinite(costs))

    def of(self, clients: Ints) -> "Planner":
        """For these clients alone, with the same bound, in a new copy of the scheduler."""
        few = Planner(deepcopy(self.scheduler))
        few.plan(self.costs[clients], self.bound)
        return few

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether a fragment is feasible for a client [N, M]."""
        return np.asarray((self.costs <= self.bound * (1 + TOLERANCE)) & np.isfinite(self.costs))

    def choose(
        self, client: int, turn: int, now: float, feasible: Ints, standing: Standing, rng: np.random.Generator
    ) -> int:
        """The scheduler's fragment for the client; ValueError for one that it cannot train."""
        view = View(
            client,
            turn,
            now,
            _to_look_at(feasible),
            _to_look_at(self.costs[client]),
            self.bound,
            _to_look_at(standing.counts),
            _to_look_at(standing.sent),
            _to_look_at(standing.staleness),
            _to_look_at(standing.losses),
        )
        chosen = self.scheduler.choose(view, rng)
        fragments = self.costs.shape[1]
        if isinstance(chosen, bool) or not isinstance(chosen, int | np.integer) or not 0 <= chosen < fragments:
            who = type(self.scheduler).__name__
            raise ValueError(f"scheduler: {who} chose {chosen!r:.80} for client {client}; takes 0 to {fragments - 1}")
        if not np.isfinite(self.costs[client, chosen]):
            who = type(self.scheduler).__name__
            raise ValueError(f"scheduler: {who} chose fragment {chosen} for client {client}, which lacks the memory")
        return int(chosen)
