"""Weights of clients by data against speed: a client with much data and few updates counts more."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def balances(samples: npt.NDArray[np.int64], rates: Floats, power: float) -> Floats:
    """Return c_n = ((n's share of samples) / (n's share of local steps)) ** power [N], over their mean by steps.

    With the power 1, all samples count alike in the long run, however fast their device is. With 0, all steps count
    alike, and c_n is 1.

    Args:
        samples: Training samples of each client [N].
        rates: Local steps of each client per unit of time [N].
        power: The power, from 0.
    """
    if power == 0:
        return np.ones(len(samples))
    shares = rates / rates.sum()
    factors = (samples / samples.sum() / shares) ** power
    return np.asarray(factors / (shares @ factors))


def balanced(weight: float, balance: float) -> float:
    """Return an arrival's weight times its client's factor, at most 1. A factor of 1 leaves the weight unchanged."""
    return weight if balance == 1 else min(1.0, balance * weight)
