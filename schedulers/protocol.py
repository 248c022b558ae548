"""The interface of a scheduler, which picks the fragment that an idle client trains next."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SchedulingContext:
    """The state of the server when it chooses a client's next fragment.

    Arrays are read-only. They are [M], with one entry per fragment, except `feasible`.

    Attributes:
        client: The idle client, from 0.
        turn: Number of tasks that the client had before.
        now: Time on the run's clock, in time units.
        feasible: Fragments within the delay bound, ascending; at most M.
        costs: Modelled duration of a task of this client on each fragment, in time units, infinite if the client cannot
            hold the fragment.
        bound: The delay bound K, in time units.
        counts: Applied updates of each fragment, q(j). In a round, tasks that were already assigned count as well.
        sent: Tasks of each fragment that were sent, including tasks in flight and without dropped tasks.
        staleness: Staleness of the last applied update of each fragment, 0 before the first one.
        losses: Mean training loss of the last applied update of each fragment, infinite before the first one.
    """

    client: int
    turn: int
    now: float
    feasible: Ints
    costs: Costs
    bound: float
    counts: Ints
    sent: Ints
    staleness: Ints
    losses: Costs


class Scheduler(ABC):
    """The choice of a fragment for each idle client.

    A custom scheduler defines `choose`:

        class HighestLoss(Scheduler):
            def choose(self, view, rng):
                return max(view.feasible, key=view.losses.__getitem__)

    A checkpoint holds all attributes of the object, through `state` and `restore`. Override both for attributes other
    than numbers, text, lists, dicts with text keys and NumPy arrays.

    Attributes:
        bounded: True if the scheduler chooses from `view.feasible` only. A run that begins with a client without a
            feasible fragment is then refused.
    """

    bounded: ClassVar[bool] = True

    @abstractmethod
    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        """Return the fragment, from 0 to M - 1, which the client can hold. Draw random numbers only from `rng`."""

    def plan(self, costs: Costs, bound: float) -> None:
        """Prepare for these costs c[n, j] [N, M] and this delay bound.

        The server calls this before the first choice, and again whenever it has learned new costs.
        """

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
