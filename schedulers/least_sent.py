"""Least-sent: choose the fragment that was sent least often.

Tasks in flight count, so concurrent clients spread out.
"""

from dataclasses import dataclass

import numpy as np

from schedulers.greedy import least_updated
from schedulers.protocol import Scheduler, SchedulingContext


@dataclass
class LeastSent(Scheduler):
    """The scheduler least-sent: the fragment within the delay bound that was sent least often, ties at random.

    Until the first update of a fragment arrives, Gre-RAA gives the same fragment to many clients.
    """

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        return least_updated(view.feasible, view.sent, rng)
