"""Clients with unequal numbers of samples, all of one distribution."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.partitioner import Index, Partitioner
from fedraa.numbers import NotNegative


class Quantity(Partitioner):
    """Random samples; how many each client has is what its weight says, at least one."""

    @abstractmethod
    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Positive numbers [clients], in whatever unit."""

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        sizes = sized(self.weights(clients, rng), len(labels))
        return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class PowerLaw(Quantity):
    """The k-th largest client, from 1, has samples in proportion to k ** -exponent; who that is, is chance."""

    exponent: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.permutation(np.arange(1.0, clients + 1) ** -self.exponent)


@dataclass(frozen=True)
class LogNormal(Quantity):
    """Clients' numbers of samples are log-normal, with the standard deviation `sigma` of their logarithm."""

    sigma: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.lognormal(0.0, self.sigma, clients)


def sized(weights: npt.NDArray[np.float64], samples: int) -> Index:
    """Whole numbers that sum to `samples`: one each, and of the rest the share of each weight by largest remainder."""
    shares = weights / weights.sum() * (samples - len(weights))
    sizes = np.floor(shares).astype(np.int64)
    largest = np.argsort(sizes - shares, kind="stable")[: samples - len(weights) - sizes.sum()]
    sizes[largest] += 1
    return np.asarray(sizes + 1, np.int64)
