"""Gre-RAA (Fed-RAA, section 5 and Algorithm 2): the least updated fragment within the delay bound."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, SchedulingContext


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Return a candidate with the fewest updates. Ties are broken uniformly at random.

    The paper's pseudocode keeps the first strictly smaller count from a random start, which is not uniform. The text of
    the paper demands random ties, and this function follows the text.

    Args:
        candidates: Fragments.
        counts: The count of each fragment [M]: its applied updates, or its sent tasks if the scheduler is `least-sent`.
        rng: The source of randomness.
    """
    updates = counts[candidates]
    tied = candidates[updates == updates.min()]
    # A single candidate costs no random draw.
    return int(tied[0] if tied.size == 1 else rng.choice(tied))


@dataclass
class GreRAA(Scheduler):
    """The scheduler Gre-RAA: the least updated fragment within the delay bound."""

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.counts, rng)
