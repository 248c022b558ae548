"""The scheduler Gre-RAA (Fed-RAA, section 5, Algorithm 2), which gives a client the least updated feasible fragment."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, SchedulingContext


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Return the candidate fragment with the fewest updates. Ties are broken uniformly at random.

    This follows the text of the Fed-RAA paper. The paper's pseudocode differs: it scans the fragments from a random
    start and keeps the first with the smallest count, which does not break ties uniformly.

    Args:
        candidates: The fragments to choose from.
        counts: The number of updates of each fragment [M].
        rng: The random generator that breaks ties.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # If only one candidate has the fewest updates, no random number is drawn.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA. It chooses the least updated of all fragments within the delay bound.

    The paper counts only updates that have arrived. Therefore several clients that become idle before the next update
    arrives get the same fragment, and their updates partly overwrite each other. The option `in_flight` avoids this.

    Attributes:
        in_flight: True to count the tasks that clients are still training as updates of their fragments.
    """

    in_flight: bool = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        if self.in_flight:
            return least_updated(view.feasible, view.sent, rng)
        return least_updated(view.feasible, view.counts, rng)
