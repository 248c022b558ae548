"""What a scheduler sees and what it must do: pick the fragment that an idle client trains next."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What is known when `client` is given its `turn`-th task (from 0), at the time `now` on the run's clock.

    Arrays are [M], one entry per fragment, and cannot be written to:

    - `feasible`: the numbers of the fragments whose cost is within the delay bound, ascending [1..M].
    - `costs`: the modelled duration of a task on each fragment for this client, in time units; infinite if it cannot
      hold it. `bound` is the delay bound K.
    - `counts`: updates taken in, q(j). `sent`: tasks given out, those in flight among them, less those dropped.
    - `staleness`: of the last update taken in, 0 before. `losses`: its mean training loss, infinite before.
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
    """Picks a fragment for each idle client. An own one needs `choose` alone:

        class HighestLoss(Scheduler):
            def choose(self, view, rng):
                return max(view.feasible, key=view.losses.__getitem__)

    Whatever it keeps in its attributes is saved with checkpoints and comes back on resume, through `state` and
    `restore`; override these for what is neither numbers, text, lists, dicts with text keys nor NumPy arrays.
    `bounded`: it chooses among `view.feasible`, so that a run in which that is empty for a client is refused.
    """

    bounded: ClassVar[bool] = True

    @abstractmethod
    def choose(self, view: View, rng: np.random.Generator) -> int:
        """The fragment, 0 to M - 1, one that the client can hold. All that is random comes from `rng`."""

    def plan(self, costs: Costs, bound: float) -> None:
        """The costs c[n, j], of shape [N, M], and the delay bound: before the first choice, and when learned anew."""

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
