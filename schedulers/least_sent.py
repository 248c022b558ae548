"""The scheduler least-sent, which gives different fragments to clients that train at the same time."""

from dataclasses import dataclass

from schedulers.greedy import GreRAA


@dataclass
class LeastSent(GreRAA):
    """A variant of Gre-RAA: it chooses the feasible fragment that was sent least often, not the least updated one."""

    in_flight: bool = True
