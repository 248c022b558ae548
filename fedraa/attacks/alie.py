"""ALIE, "a little is enough": hide in the variance of honest deltas (Baruch, Baruch, Goldberg 2019, Algorithm 3).

    delta_c = mean_c - z * std_c    # mean and sample std over the clients that trained coordinate c
    in the paper: s = floor(n / 2 + 1) - m;   z = Phi^-1((n - m - s) / (n - m))    # n clients, m attackers

With 20 % attackers, the paper's z is between 0 and 0.29, which is almost no attack. The default is therefore 1.5;
`z=None` gives the paper's value. The paper's attackers estimate mean and std from their own deltas (`knowledge="own"`).
An attacker sends its own value of a coordinate with fewer than two known values.

Read next: attacks/collusion.py (the deltas that attackers see).
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np

from fedraa.aggregation.robust.rows import Numbers, Rows, combine_chunks, count_rows
from fedraa.attacks.attack import ATTACK, Attack
from fedraa.numbers import NotNegative


@ATTACK.register("alie")
@dataclass
class ALIE(Attack):
    """Send the mean minus `z` standard deviations of the deltas that the attackers see (Baruch et al. 2019).

    Attributes:
        z: Number of standard deviations; None for the value in the paper.
        knowledge: The deltas that the attackers see: `honest` for those of honest clients, `own` for their own.
    """

    z: NotNegative | None = 1.5
    knowledge: Literal["honest", "own"] = "honest"

    colludes: ClassVar[bool] = True

    def collude(self, rows: Rows, clients: int, attackers: int) -> Numbers:
        z = self.z
        if z is None:
            z = paper_z(clients, attackers)

        def shift_mean(block: Numbers) -> Numbers:
            mean, deviation = mean_and_std(block)
            return mean - z * deviation

        return combine_chunks(rows, shift_mean)


def paper_z(clients: int, attackers: int) -> float:
    """Return the z of ALIE's paper, which lets the attackers hide among the honest clients.

    If deltas are normally distributed, some honest clients have deltas more than z standard deviations below the mean.
    With this z, these clients and the attackers together are just more than half of all clients.
    """
    honest = clients - attackers
    supporters = max(1, clients // 2 + 1 - attackers)
    if honest <= supporters:
        return 0.0
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest))


def mean_and_std(block: Numbers) -> tuple[Numbers, Numbers]:
    """Return the mean [k] and the sample standard deviation [k] of each column of a chunk [n, k].

    NaN values are ignored. Both results are NaN for a column in which fewer than two values are not NaN.
    """
    counts = count_rows(block)
    enough = counts >= 2
    nothing = np.full(block.shape[1], np.nan)
    mean = np.divide(np.nansum(block, axis=0), counts, out=nothing.copy(), where=enough)
    squared = np.nansum((block - mean) ** 2, axis=0)
    return mean, np.sqrt(np.divide(squared, counts - 1, out=nothing, where=enough))
