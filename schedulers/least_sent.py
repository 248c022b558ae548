"""The scheduler least-sent, which gives clients that train at the same time different fragments."""

from dataclasses import dataclass

from schedulers.greedy import GreRAA


@dataclass
class LeastSent(GreRAA):
    """The scheduler least-sent: Gre-RAA with `in_flight`. It chooses the fragment that was sent least often."""

    in_flight: bool = True
