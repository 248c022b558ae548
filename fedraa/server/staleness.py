"""Staleness weights s(k) of FedAsync (Xie, Koyejo, Gupta 2019, section 5) in [0, 1], s(0) = 1."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

EXPONENT = 0.5
HINGE_SLOPE, HINGE_START = 10, 4


def constant(staleness: int) -> float:
    return 1.0


def polynomial(staleness: int) -> float:
    """(k + 1)^-a with a = 0.5."""
    return float((staleness + 1) ** -EXPONENT)


def hinge(staleness: int) -> float:
    """1 up to k = b, then 1 / (a (k - b) + 1), with a = 10 and b = 4."""
    return 1.0 if staleness <= HINGE_START else 1 / (HINGE_SLOPE * (staleness - HINGE_START) + 1)


STALENESS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {"constant": constant, "polynomial": polynomial, "hinge": hinge}
)
