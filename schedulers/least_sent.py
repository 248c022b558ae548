"""The scheduler least-sent, which gives different fragments to clients that train at the same time."""

from dataclasses import dataclass

from schedulers.greedy import GreRAA


@dataclass
class LeastSent(GreRAA):
    """Gre-RAA by sent tasks, not by applied updates: it chooses the feasible fragment that was sent least often."""

    in_flight: bool = True
