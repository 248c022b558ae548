"""Gre-RAA (Fed-RAA, section 5 and Algorithm 2): the least updated fragment within the delay bound."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, SchedulingContext


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Return the candidate with the fewest updates. Ties are broken uniformly at random.

    The paper's text demands random ties, which this function follows. Its pseudocode scans from a random start and
    keeps the first smallest count, which is not uniform.

    Args:
        candidates: Fragments.
        counts: The count of each fragment [M]: its applied updates, or its sent tasks with `in_flight`.
        rng: The source of randomness.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # A single candidate needs no random draw.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA: the least updated fragment within the delay bound.

    The paper counts only updates that have arrived. So until a fragment's next update arrives, all idle clients get the
    same fragment, and their updates overwrite each other. With `in_flight` the tasks that have not ended count too.

    Attributes:
        in_flight: True to count a fragment's tasks in flight as updates.
    """

    in_flight: bool = False

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        if self.in_flight:
            return least_updated(view.feasible, view.sent, rng)
        return least_updated(view.feasible, view.counts, rng)
