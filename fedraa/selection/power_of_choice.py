"""Power-of-choice: of random candidates, choose the clients with the highest loss (Cho et al. 2020, Algorithm 1).

When m clients are chosen:
    A = d clients without replacement, drawn with probability p_i = n_i / sum of n
    F_i = mean training loss of client i's last update, infinite before the first one     # rpow-d
    choose the m clients of A with the largest F_i; if losses are equal, the client with the lower number

The paper aggregates with the plain mean: `weights=uniform`.

Read next: ledger/participation.py (the interface), ledger/selection_context.py (the observations).
"""

from dataclasses import dataclass

import numpy as np

from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import Ints, SelectionContext
from fedraa.messages import Floats
from fedraa.numbers import Count, format_count


def highest_losses(losses: Floats, candidates: Ints, count: int) -> list[int]:
    """Return the `count` candidates with the highest losses, in descending order. Equal losses are sorted by number.

    Args:
        losses: A loss for each client [N].
        candidates: The candidates.
        count: Number of candidates to return.
    """
    ascending = np.sort(candidates)
    order = np.argsort(-losses[ascending], kind="stable")
    chosen: list[int] = ascending[order[:count]].tolist()
    return chosen


@PARTICIPATION.register("power-of-choice")
@dataclass
class PowerOfChoice(CountedSelection):
    """A choice of the clients with the highest last loss among random candidates (Cho et al. 2020, rpow-d).

    On unequal data, the model converges faster than with a uniform choice, but may end at a higher loss. Clients send
    their losses with their updates, so the losses need no additional traffic. The paper's pow-d, which first
    evaluates the model on all candidates, is not available.

    Attributes:
        count: Number of clients per round (m). Not for asynchronous methods.
        candidates: Number of candidates (d). None means twice the number of chosen clients.
        max_age: Number of server steps after which the last loss of a client counts as unknown. Without such a limit
            (None), a client with one high loss may be chosen in every round.
    """

    candidates: Count | None = None
    max_age: Count | None = None

    state_fields = ()

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        drawn = self.candidates or 2 * view.count
        if drawn < view.count:
            problem = f"{view.count} of the candidates must be chosen"
            raise InputError("power-of-choice.candidates", problem, got=drawn, hint="give more candidates")
        if self.candidates is not None and self.candidates > len(view.samples):
            problem = f"the run has {format_count(len(view.samples), 'client')}"
            raise InputError("power-of-choice.candidates", problem, got=drawn, hint="give fewer candidates")
        shares = view.samples[view.candidates] / view.samples[view.candidates].sum()
        among = rng.choice(view.candidates, min(drawn, len(view.candidates)), replace=False, p=shares)
        losses = view.losses
        if self.max_age is not None:
            losses = np.where(view.step - view.last_steps > self.max_age, np.inf, losses)
        return highest_losses(losses, among, view.count)
