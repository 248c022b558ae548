"""The runner of a scheduler: it holds the costs and the delay bound, and checks the scheduler's choices."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulers.bound import delay_bound
from schedulers.protocol import Costs, Ints, Scheduler, SchedulingContext

# A fragment is feasible if its cost is at most (1 + TOLERANCE) * K. The tolerance gives clients with one sample more
# than others the same feasible fragments, and keeps fragments that cost exactly K* despite rounding.
TOLERANCE = 0.01


class WrongChoice(ValueError):
    """An error about a scheduler that chose no fragment, or a fragment that the client's device cannot hold.

    Attributes:
        problem: The choice, in words that follow the name of the scheduler.
        expected: The allowed choices.
    """

    def __init__(self, scheduler: Scheduler, problem: str, expected: str) -> None:
        self.problem = f"{type(scheduler).__name__} {problem}"
        self.expected = expected
        super().__init__(f"{self.problem}; expected {expected}")


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view of the array."""
    shown = array.view()
    shown.flags.writeable = False
    return shown


@dataclass(eq=False)
class FragmentStats:
    """The statistics of the fragments: arrays [M] with one entry per fragment. The server keeps them up to date.

    The arrays of a SchedulingContext are views of them.
    """

    counts: Ints
    sent: Ints
    staleness: Ints
    losses: Costs

    @classmethod
    def start(cls, fragments: int) -> "FragmentStats":
        """Return the statistics before the first task."""
        counts, sent, staleness = (np.zeros(fragments, np.int64) for _ in range(3))
        return cls(counts, sent, staleness, np.full(fragments, np.inf))


def count_once(counts: Ints, before: Ints) -> None:
    """Close a round: each fragment that was trained in the round gets one update, however many clients trained it.

    Both arrays change in place.

    Args:
        counts: Updates of each fragment [M], in which each task of the round counts.
        before: Updates of each fragment [M] before the round.
    """
    counts[:] = before + (counts > before)
    before[:] = counts


@dataclass(eq=False)
class SchedulerRunner:
    """A scheduler with the costs and the delay bound K on which its choices depend."""

    scheduler: Scheduler
    costs: Costs = field(init=False)
    bound: float = field(init=False)

    def plan(self, costs: Costs, bound: float | None) -> None:
        """Use these costs c[n, j] [N, M] from now on."""
        self.costs = costs
        self.bound = delay_bound(costs) if bound is None else bound
        self.scheduler.plan(self.costs, self.bound)

    def feasible(self, client: int) -> Ints:
        """Return the fragments that the client can train within the delay bound, ascending."""
        costs = self.costs[client]
        return np.flatnonzero((costs <= self.bound * (1 + TOLERANCE)) & np.isfinite(costs))

    def of(self, clients: Ints) -> "SchedulerRunner":
        """Return a runner for only these clients, with the same bound and a new copy of the scheduler."""
        runner = SchedulerRunner(deepcopy(self.scheduler))
        runner.plan(self.costs[clients], self.bound)
        return runner

    def feasible_mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask [N, M]: True if the fragment is feasible for the client."""
        return np.asarray((self.costs <= self.bound * (1 + TOLERANCE)) & np.isfinite(self.costs))

    def choose(
        self, client: int, turn: int, now: float, feasible: Ints, stats: FragmentStats, rng: np.random.Generator
    ) -> int:
        """Return the fragment that the scheduler chooses for the client.

        A bounded scheduler cannot choose for a client without a feasible fragment. The client then gets its cheapest
        fragment.

        Args:
            client: The idle client, from 0.
            turn: Number of tasks that the client had before.
            now: Time on the run's clock, in time units.
            feasible: The client's fragments within the delay bound.
            stats: Statistics of the fragments.
            rng: The source of randomness.

        Raises:
            WrongChoice: The choice is no fragment, or one that the device cannot hold.
        """
        if self.scheduler.bounded and not feasible.size:
            # On the wall clock, learned costs may exceed the bound that the user set, for all fragments of a client.
            return int(self.costs[client].argmin())
        context = SchedulingContext(
            client,
            turn,
            now,
            _read_only(feasible),
            _read_only(self.costs[client]),
            self.bound,
            _read_only(stats.counts),
            _read_only(stats.sent),
            _read_only(stats.staleness),
            _read_only(stats.losses),
        )
        chosen = self.scheduler.choose(context, rng)
        fragments = self.costs.shape[1]
        if isinstance(chosen, bool) or not isinstance(chosen, int | np.integer) or not 0 <= chosen < fragments:
            problem = f"chose {chosen!r:.80} for client {client}"
            raise WrongChoice(self.scheduler, problem, f"a fragment from 0 to {fragments - 1}")
        if not np.isfinite(self.costs[client, chosen]):
            problem = f"chose fragment {chosen} for client {client}"
            raise WrongChoice(self.scheduler, problem, "a fragment that the client has the memory for")
        return int(chosen)
