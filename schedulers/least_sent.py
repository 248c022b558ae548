"""Least-sent: Gre-RAA with tasks in flight, so concurrent clients spread out."""

from dataclasses import dataclass

from schedulers.greedy import GreRAA


@dataclass
class LeastSent(GreRAA):
    """The scheduler least-sent: Gre-RAA with `in_flight`. It gives the fragment that was sent least often."""

    in_flight: bool = True
