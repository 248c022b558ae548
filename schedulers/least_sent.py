"""The fragment least often sent: what is on its way counts, so that clients that come at once spread out."""

from dataclasses import dataclass

import numpy as np

from schedulers.greedy import least_updated
from schedulers.protocol import Scheduler, View


@dataclass
class LeastSent(Scheduler):
    """Among the fragments within the delay bound, the one that the fewest tasks were given out for; ties at random.

    Gre-RAA counts what came back: until the first update of a fragment arrives, many clients are given the same one.
    """

    def choose(self, view: View, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.sent, rng)
