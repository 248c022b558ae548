"""The interface of a scheduler, which chooses the fragment that an idle client trains next."""

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

    Arrays are read-only. Except `feasible`, they have one entry per fragment: [M].

    Attributes:
        client: The idle client, from 0.
        turn: Number of earlier tasks of this client.
        now: Time on the run's clock, in time units.
        feasible: Fragments that this client can train within the delay bound, ascending.
        costs: Duration of a task of this client on each fragment, in time units; infinite if the fragment does not fit
            in the device's memory.
        bound: The delay bound K, in time units.
        counts: Version of each fragment, q(j) in the paper: how often an update, or a full buffer, changed it. In a
            synchronous method, the current round's tasks also count.
        sent: Number of tasks that were sent for each fragment, without dropped and lost tasks.
        staleness: Staleness of the last update that arrived for each fragment, even if the rule ignored it; 0 before
            the first update.
        losses: Mean training loss of this update of each fragment; infinite before the first update.
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
    """A component that chooses a fragment for each idle client.

    A custom scheduler defines `choose`:

        class HighestLoss(Scheduler):
            def choose(self, view, rng):
                return max(view.feasible, key=view.losses.__getitem__)

    A checkpoint holds all attributes: `state` returns them, and `restore` sets them. Override both methods if an
    attribute is not a number, text, list, dict with text keys or NumPy array.

    Attributes:
        bounded: True if the scheduler chooses only from `view.feasible`. Another choice, or a client without feasible
            fragments before the run, is then an error.
    """

    bounded: ClassVar[bool] = True

    @abstractmethod
    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        """Return the index of the chosen fragment, from 0 to M - 1.

        Its entry of `view.costs` must be finite. Draw random numbers only from `rng`, so that the run can be repeated.
        """

    def plan(self, costs: Costs, bound: float) -> None:
        """Prepare for later choices. The server calls this before the first choice and whenever the costs change.

        Args:
            costs: The cost of a task of client n on fragment j [N, M], in time units.
            bound: The delay bound K, in time units.
        """

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
