"""The scheduler Gre-RAA (Fed-RAA, section 5, Algorithm 2), and its variant least-sent."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, SchedulingContext


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Return the candidate fragment with the fewest updates. Ties are broken uniformly at random.

    This follows the text of the Fed-RAA paper. Its pseudocode breaks ties by the first fragment after a random start,
    which is not uniform.

    Args:
        candidates: The fragments to choose from.
        counts: The number of updates of each fragment [M].
        rng: The random generator that breaks ties.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # Without a tie, no random number is drawn.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA, which chooses the least updated fragment within the delay bound.

    The paper counts only updates that have arrived. With this count, clients that become idle before the next update
    get the same fragment.

    Attributes:
        in_flight: True to also count tasks that clients are still training.
    """

    in_flight: bool = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        if self.in_flight:
            return least_updated(view.feasible, view.sent, rng)
        return least_updated(view.feasible, view.counts, rng)


@dataclass
class LeastSent(GreRAA):
    """A variant of Gre-RAA: it chooses the feasible fragment that was sent least often, not the least updated one.

    It gives different fragments to clients that train at the same time.
    """

    in_flight: bool = True
