"""Functions s(k) of the staleness k that reduce the weight of stale updates (Xie, Koyejo, Gupta 2019, section 5).

The values of the built-in functions are in [0, 1], and s(0) = 1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pydantic import NonNegativeInt

from fedraa.components.registry import ComponentRegistry
from fedraa.numbers import NotNegative


class StalenessWeight(ABC):
    """A factor of an update's weight, as a function of the update's staleness.

    A plain function also works, such as lambda staleness: 1 / (1 + staleness)
    """

    @abstractmethod
    def __call__(self, staleness: int) -> float:
        """Return the factor for an update with this staleness."""

    def among(self, clients: int) -> "StalenessWeight":
        """Return this function, adapted to `clients` clients that train at the same time."""
        return self


@dataclass(frozen=True)
class Constant(StalenessWeight):
    """The factor 1 at any staleness."""

    def __call__(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(StalenessWeight):
    """The factor (k + 1)^-a, with the staleness k and the `exponent` a."""

    exponent: NotNegative = 0.5

    def __call__(self, staleness: int) -> float:
        return float((staleness + 1) ** -self.exponent)


@dataclass(frozen=True)
class Hinge(StalenessWeight):
    """The factor 1 for a staleness k <= b, otherwise 1 / (a (k - b) + 1), with the `slope` a and the `start` b."""

    slope: NotNegative = 10
    start: NotNegative = 4

    def __call__(self, staleness: int) -> float:
        if staleness <= self.start:
            return 1.0
        return 1 / (self.slope * (staleness - self.start) + 1)


@dataclass(frozen=True)
class DelayAdaptive(StalenessWeight):
    """The factor n / max(n, k) (delay-adaptive asynchronous SGD).

    k is the staleness, and `clients` is n. If `clients` is 0, n is the number of clients that train at the same time,
    because a staleness of n is then usual.
    """

    clients: NonNegativeInt = 0

    def __call__(self, staleness: int) -> float:
        usual = max(1, self.clients)
        return usual / max(usual, staleness)

    def among(self, clients: int) -> StalenessWeight:
        return DelayAdaptive(self.clients or clients)


def weight_for_clients(weight: StalenessWeight, clients: int) -> StalenessWeight:
    """Return the weight function, adapted to `clients` clients that train at the same time.

    A plain function is returned unchanged.
    """
    return weight.among(clients) if isinstance(weight, StalenessWeight) else weight


STALENESS: ComponentRegistry[StalenessWeight] = ComponentRegistry(
    "staleness",
    ("__call__",),
    {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge, "delay-adaptive": DelayAdaptive},
    base="StalenessWeight",
)
