"""Participation correction: updates get a larger weight if their client has much data and reports rarely."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedraa.devices.costs import CostModel, Widths
from fedraa.messages import Floats

BISECTIONS = 40


def balance_factors(samples: npt.NDArray[np.int64], rates: Floats, power: float) -> Floats:
    """Return c_n = ((n's share of samples) / (n's share of local steps)) ** power [N], scaled to a mean of 1.

    The mean is weighted by the shares of local steps. With the power 1, all samples count equally in the long run.

    Args:
        samples: Number of training samples of each client [N].
        rates: Local steps of each client per unit of time [N].
        power: The power, 0 or more.
    """
    if power == 0:
        return np.ones(len(samples))
    shares = rates / rates.sum()
    factors = (samples / samples.sum() / shares) ** power
    return np.asarray(factors / (shares @ factors))


def balanced_weight(weight: float, balance: float) -> float:
    """Return weight * balance, but at most 1. A balance of 1 does not change the weight."""
    if balance == 1:
        return weight
    return min(1.0, balance * weight)


def planned_balances(
    costs: CostModel,
    shapes: Sequence[Widths],
    samples: npt.NDArray[np.int64],
    power: float,
    at_a_time: int | None,
) -> Floats:
    """Return each client's participation correction [N], a factor for its updates, from the current costs of tasks.

    Args:
        costs: The costs of tasks.
        shapes: The submodels that clients train.
        samples: Number of training samples of each client [N].
        power: The power of the participation correction.
        at_a_time: Number of clients that train at the same time; None for all.
    """
    if power == 0:
        return np.ones(len(samples))
    table = costs.table(shapes)
    return balance_factors(samples, costs.step_rates(shapes, table + mean_pause(table, at_a_time)), power)


def mean_pause(table: Floats, at_a_time: int | None) -> float:
    """Return the mean time that a client waits between two of its tasks; 0 if all clients train at the same time.

    With this waiting time, `at_a_time` clients train on average.

    Args:
        table: The costs of tasks [N, M].
        at_a_time: Number of clients that train at the same time; None for all.
    """
    if at_a_time is None or at_a_time >= len(table):
        return 0.0
    # A submodel that does not fit in a client's memory has an infinite cost.
    held_count = np.maximum(1, np.isfinite(table).sum(axis=1))
    known = np.where(np.isfinite(table), table, 0.0)
    low = 0.0
    high = len(table) / at_a_time * float(known.max())
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        busy = np.divide(known, known + middle, out=np.zeros_like(known), where=known > 0).sum(axis=1) / held_count
        if busy.sum() > at_a_time:
            low = middle
        else:
            high = middle
    return high
