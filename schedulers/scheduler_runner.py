"""The scheduler of one run with its inputs (costs and delay bound) and the checks of its choices."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulers.bound import delay_bound
from schedulers.protocol import Costs, Ints, Scheduler, SchedulingContext

# The cost of a feasible fragment may exceed the delay bound by this fraction of the bound. Otherwise one sample more or
# less could change a client's feasible fragments.
TOLERANCE = 0.01


class WrongChoice(ValueError):
    """A scheduler returned no fragment, or a fragment that the device may not train.

    Attributes:
        problem: A sentence that names the scheduler and its choice.
        expected: A description of the allowed choices.
    """

    def __init__(self, scheduler: Scheduler, problem: str, expected: str) -> None:
        self.problem = f"{type(scheduler).__name__} {problem}"
        self.expected = expected
        super().__init__(f"{self.problem}; expected {expected}")


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shown = array.view()
    shown.flags.writeable = False
    return shown


@dataclass(eq=False)
class FragmentStats:
    """Statistics of the M fragments. The server updates them. `SchedulingContext` documents the arrays [M]."""

    counts: Ints
    sent: Ints
    staleness: Ints
    losses: Costs

    @classmethod
    def start(cls, fragments: int) -> "FragmentStats":
        """Return the statistics of fragments that no client has trained yet."""
        counts, sent, staleness = (np.zeros(fragments, np.int64) for _ in range(3))
        return cls(counts, sent, staleness, np.full(fragments, np.inf))


def count_once(counts: Ints, before: Ints) -> None:
    """Count a round as one update of each trained fragment, even if several clients trained the fragment.

    The server calls the function at the end of a round. Both arrays are changed in place.

    Args:
        counts: Number of updates of each fragment [M], to which each task of the round has added 1.
        before: Number of updates of each fragment [M] before the round.
    """
    counts[:] = before + (counts > before)
    before[:] = counts


def is_feasible(costs: Costs, bound: float) -> npt.NDArray[np.bool_]:
    """Return a mask in the shape of `costs`: True for a task that a client can train within the delay bound."""
    return np.asarray((costs <= bound * (1 + TOLERANCE)) & np.isfinite(costs))


@dataclass(eq=False)
class SchedulerRunner:
    """A scheduler with the inputs of its choices: the costs [N, M] and the delay bound K, both in time units."""

    scheduler: Scheduler
    costs: Costs = field(init=False)
    bound: float = field(init=False)

    @classmethod
    def planned(cls, scheduler: Scheduler, costs: Costs, bound: float | None = None) -> "SchedulerRunner":
        """Return a runner for which `plan` has set the costs and the delay bound."""
        runner = cls(scheduler)
        runner.plan(costs, bound)
        return runner

    def plan(self, costs: Costs, bound: float | None) -> None:
        """Set the costs [N, M] and the delay bound for later choices.

        The default bound is computed from the costs.
        """
        self.costs = costs
        self.bound = delay_bound(costs) if bound is None else bound
        self.scheduler.plan(self.costs, self.bound)

    def feasible(self, client: int) -> Ints:
        """Return the fragments that the client can train within the delay bound, ascending."""
        return np.flatnonzero(is_feasible(self.costs[client], self.bound))

    def for_clients(self, clients: Ints) -> "SchedulerRunner":
        """Return a runner for a subset of the clients, with the same delay bound and a copy of the scheduler."""
        return SchedulerRunner.planned(deepcopy(self.scheduler), self.costs[clients], self.bound)

    def feasible_mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask [N, M]: entry [n, j] is True if fragment j is feasible for client n."""
        return is_feasible(self.costs, self.bound)

    def choose(
        self, client: int, turn: int, now: float, feasible: Ints, stats: FragmentStats, rng: np.random.Generator
    ) -> int:
        """Return the fragment that the scheduler chooses for the client.

        If the scheduler is `bounded` and no fragment is feasible for the client, the client gets its cheapest fragment.

        Args:
            client: The idle client, from 0.
            turn: Number of earlier tasks of this client.
            now: Time on the run's clock, in time units.
            feasible: The client's fragments within the delay bound.
            stats: Statistics of the fragments.
            rng: The random generator of this choice.

        Raises:
            WrongChoice: The scheduler returned no fragment, or a fragment that does not fit in the device's memory or,
                if the scheduler is `bounded`, in the delay bound.
        """
        if self.scheduler.bounded and not feasible.size:
            # In a run on the wall clock, the measured costs of all fragments may exceed the user's bound.
            return int(self.costs[client].argmin())
        context = SchedulingContext(
            client=client,
            turn=turn,
            now=now,
            feasible=_read_only(feasible),
            costs=_read_only(self.costs[client]),
            bound=self.bound,
            counts=_read_only(stats.counts),
            sent=_read_only(stats.sent),
            staleness=_read_only(stats.staleness),
            losses=_read_only(stats.losses),
        )
        chosen = self.scheduler.choose(context, rng)
        fragments = self.costs.shape[1]
        if isinstance(chosen, bool) or not isinstance(chosen, int | np.integer) or not 0 <= chosen < fragments:
            problem = f"chose {chosen!r:.80} for client {client}"
            raise WrongChoice(self.scheduler, problem, f"a fragment from 0 to {fragments - 1}")
        if not np.isfinite(self.costs[client, chosen]):
            problem = f"chose fragment {chosen} for client {client}"
            raise WrongChoice(self.scheduler, problem, "a fragment that fits in the memory of the client's device")
        if self.scheduler.bounded and chosen not in feasible:
            problem = f"chose fragment {chosen} for client {client}, which takes longer than the delay bound"
            listed = ", ".join(map(str, feasible.tolist()))
            raise WrongChoice(self.scheduler, problem, f"a fragment in view.feasible ({listed}), or bounded = False")
        return int(chosen)
