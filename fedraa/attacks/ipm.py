"""IPM, inner-product manipulation: turn the mean against the honest direction (Xie, Koyejo, Gupta 2019).

    delta = -epsilon * mean of the honest deltas

Rules that compare distances, such as Krum, do not detect a small epsilon (0.1). A large epsilon reverses the plain mean
if epsilon * attackers > honest clients. An attacker sends its own value of a coordinate that fewer than two honest
clients trained.

Read next: attacks/collusion.py (the deltas that attackers see).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedraa.aggregation.robust.rows import Numbers, Rows, combine_chunks
from fedraa.attacks.alie import mean_and_std
from fedraa.attacks.attack import ATTACK, Attack
from fedraa.numbers import Positive


@ATTACK.register("ipm")
@dataclass
class IPM(Attack):
    """Send -`epsilon` times the mean of the honest deltas (Xie, Koyejo, Gupta 2019)."""

    epsilon: Positive = 0.5

    colludes: ClassVar[bool] = True

    def collude(self, rows: Rows, clients: int, attackers: int) -> Numbers:
        return combine_chunks(rows, lambda block: -self.epsilon * mean_and_std(block)[0])
