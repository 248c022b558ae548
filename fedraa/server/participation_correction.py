"""Data against speed: by how much more an update of a client counts that has much data and sends few updates."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def balances(samples: npt.NDArray[np.int64], rates: Floats, power: float) -> Floats:
    """c_n = ((n's share of all samples) / (n's share of all local steps)) ** power [N], over their mean by steps.

    `samples` [N] are the clients' own, `rates` [N] their local steps per unit of time. With the power 1 all samples
    count alike in the long run, however fast the device that has them is; with 0 all steps do, and c_n is 1.
    """
    if power == 0:
        return np.ones(len(samples))
    shares = rates / rates.sum()
    factors = (samples / samples.sum() / shares) ** power
    return np.asarray(factors / (shares @ factors))


def balanced(weight: float, balance: float) -> float:
    """An arrival's weight times its client's factor, at most 1; as it is where the factor is 1."""
    return weight if balance == 1 else min(1.0, balance * weight)
