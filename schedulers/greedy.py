"""Gre-RAA (Fed-RAA, section 5 and Algorithm 2): the fragment with the fewest updates within the delay bound."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, SchedulingContext


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Return the candidate with the fewest updates. Ties are broken uniformly at random.

    This follows the text of the paper. The paper's pseudocode scans from a random start and keeps the first smallest
    count, which does not break ties uniformly.

    Args:
        candidates: The fragments to choose from.
        counts: The number of updates of each fragment [M].
        rng: The random generator that breaks ties.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # No random number is drawn for a single candidate.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA: the fragment with the fewest updates within the delay bound.

    The paper counts only updates that have arrived. Therefore all clients that become idle before the next update
    arrives get the same fragment, and their updates partly overwrite each other. `in_flight` avoids this.

    Attributes:
        in_flight: True to also count tasks that a client is still training.
    """

    in_flight: bool = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        if self.in_flight:
            return least_updated(view.feasible, view.sent, rng)
        return least_updated(view.feasible, view.counts, rng)
