"""Partitioners that give clients unequal numbers of samples, all from the same distribution."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.partitioner import Index, Partitioner
from fedraa.numbers import NotNegative


class Quantity(Partitioner):
    """A partition of random samples. A client's number of samples is about proportional to its weight, at least 1."""

    @abstractmethod
    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the weight of each client: positive numbers [clients], of which only the ratios matter."""

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        sizes = apportion_sizes(self.weights(clients, rng), len(labels))
        return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class PowerLaw(Quantity):
    """A partition by a power law. The k-th largest client, counted from 1, has the weight k ** -exponent.

    The order of the clients by size is random.
    """

    exponent: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.permutation(np.arange(1.0, clients + 1) ** -self.exponent)


@dataclass(frozen=True)
class LogNormal(Quantity):
    """A partition with log-normal weights; their logarithms have the standard deviation `sigma`."""

    sigma: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.lognormal(0.0, self.sigma, clients)


def apportion_sizes(weights: npt.NDArray[np.float64], samples: int) -> Index:
    """Return whole numbers that sum to `samples`.

    Each client gets one sample. The rest is divided in proportion to the weights, by the largest-remainder method.
    """
    shares = weights / weights.sum() * (samples - len(weights))
    sizes = np.floor(shares).astype(np.int64)
    largest = np.argsort(sizes - shares, kind="stable")[: samples - len(weights) - sizes.sum()]
    sizes[largest] += 1
    return np.asarray(sizes + 1, np.int64)
