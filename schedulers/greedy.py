"""Gre-RAA (Fed-RAA, section 5 and Algorithm 2): the least updated fragment within the delay bound."""

from dataclasses import dataclass

import numpy as np

from schedulers.protocol import Ints, Scheduler, View


def least_updated(candidates: Ints, counts: Ints, rng: np.random.Generator) -> int:
    """Argmin of q over the candidates, ties uniformly at random.

    The paper's pseudocode keeps the first strictly smaller q from a random start, which is not uniform; its
    text says random, and that is what is done.
    """
    updates = counts[candidates]
    least = candidates[updates == updates.min()]
    return int(least[0] if least.size == 1 else rng.choice(least))


@dataclass
class GreRAA(Scheduler):
    """Greedy: among the fragments within the delay bound, the least updated one."""

    def choose(self, view: View, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.counts, rng)
