"""Partitioners that give clients unequal numbers of samples from the same distribution."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.data.partition.partitioner import Partitioner
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.numbers import NotNegative, Positive, round_to_total


class Quantity(Partitioner):
    """A partition of random samples in unequal numbers.

    Each client has at least one sample. The number of samples is about proportional to the weight of the client.
    """

    @abstractmethod
    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return the weight of each client: positive numbers [clients] of which only the ratios matter."""

    def sizes(self, weights: npt.NDArray[np.float64], samples: int) -> Index:
        """Return the number of samples of each client [clients]. The sum of these numbers is `samples`."""
        return apportion_sizes(weights, samples)

    def assign(self, labels: Index, clients: int, rng: np.random.Generator) -> Sequence[Index]:
        sizes = self.sizes(self.weights(clients, rng), len(labels))
        return np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1])


@dataclass(frozen=True)
class PowerLaw(Quantity):
    """A partition by a power law: the k-th largest client (k = 1, 2, ...) has the weight k ** -exponent.

    The order of the clients by size is random.
    """

    exponent: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.permutation(np.arange(1.0, clients + 1) ** -self.exponent)


@dataclass(frozen=True)
class Zipf(PowerLaw):
    """A partition with Zipf sizes: the k-th largest client (k = 1, 2, ...) has a size proportional to k ** -exponent.

    The order of the clients by size is random. Sizes are rounded by the largest remainder. A client without samples is
    an error. `powerlaw` has the same weights, but first gives every client one sample.
    """

    def sizes(self, weights: npt.NDArray[np.float64], samples: int) -> Index:
        sizes = round_shares(weights, samples)
        if sizes.min() < 1:
            problem = f"the smallest of {len(sizes)} clients would get none of {samples} samples"
            raise InputError("partition", problem, hint="use fewer clients, a smaller exponent or powerlaw")
        return sizes


@dataclass(frozen=True)
class DirichletSizes(Quantity):
    """A partition with client sizes from Dir(beta · 1), like `iid-diff-quantity` in NIID-Bench.

    Every client first gets one sample. NIID-Bench instead draws the sizes again until every client has 10 samples.

    Attributes:
        beta: The concentration. A smaller beta makes the numbers of samples more unequal.
    """

    beta: Positive = 0.5

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.dirichlet(np.full(clients, self.beta))


@dataclass(frozen=True)
class LogNormal(Quantity):
    """A partition with log-normal weights of the clients.

    Attributes:
        sigma: The standard deviation of the logarithms of the weights.
    """

    sigma: NotNegative = 1.0

    def weights(self, clients: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.lognormal(0.0, self.sigma, clients)


def apportion_sizes(weights: npt.NDArray[np.float64], samples: int) -> Index:
    """Return the number of samples of each client. The sum of these numbers is `samples`.

    Each client gets one sample. All other samples are divided by weight (largest-remainder method).
    """
    return round_shares(weights, samples - len(weights)) + 1


def round_shares(weights: npt.NDArray[np.float64], total: int) -> Index:
    """Return integers with the sum `total`, in proportion to the weights (largest-remainder method)."""
    return round_to_total(weights / weights.sum() * total, total)
