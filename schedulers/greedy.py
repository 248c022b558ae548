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
        counts: The count of each fragment [M]: its applied updates, or its sent tasks if the scheduler is `least-sent`.
        rng: The source of randomness.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # A single candidate needs no random draw.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA: the least updated fragment within the delay bound."""

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.counts, rng)
