"""Least-sent: choose the fragment that was sent least often.

Tasks in flight count, so concurrent clients spread out.
"""

from dataclasses import dataclass

import numpy as np

from schedulers.greedy import least_updated
from schedulers.protocol import Scheduler, SchedulingContext


@dataclass
class LeastSent(Scheduler):
    """The fragment within the delay bound for which the fewest tasks were sent; ties at random.

    Gre-RAA counts applied updates. Until the first update of a fragment arrives, it gives many clients the same
    fragment.
    """

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.sent, rng)
