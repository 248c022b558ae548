"""TiFL: divide the clients into tiers by speed. Choose the clients of a round from one tier (Chai et al. 2020, Alg. 2).

Before the first round: sort the clients by the duration of a task, and cut them into n equal tiers
    credits_t = ceil(rounds / n);  P_t = 1 / n
Every I rounds, if the loss of the current tier did not fall: rank the tiers by loss; the highest loss has rank j = 1
    P = (n + 1 - j) / D,  D = n (n + 1) / 2        # n = tiers with credits; without credits P = 0
Each round: draw a tier by P, credits -= 1, then draw clients of the tier at random

The paper ranks tiers by the accuracy on validation data of the clients. fedraa ranks tiers by the mean of the last
training losses of their clients. This needs no additional work. In the paper, a run has a fixed number of rounds. A run
of fedraa may end at a time or a target, and can be extended. Therefore the credits are those of a period of rounds,
whatever the run's limit. When all credits are used, a new period begins: all tiers get new credits and the probability
1 / n.

Read next: ledger/participation.py (the interface), ledger/selection_context.py (the observations).
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import Ints, SelectionContext
from fedraa.messages import Floats
from fedraa.numbers import Count, format_count


def rank_probabilities(losses: Floats, credits: Ints) -> Floats:
    """Return the probability of each tier [n]. It rises with the tier's loss. A tier without credits has probability 0.

    Args:
        losses: The loss of each tier [n].
        credits: The remaining rounds of each tier [n].
    """
    probabilities = np.zeros(len(losses))
    with_credits = np.flatnonzero(credits > 0)
    ranked = with_credits[np.argsort(-losses[with_credits], kind="stable")]
    count = len(ranked)
    probabilities[ranked] = np.arange(count, 0, -1) / (count * (count + 1) / 2)
    return probabilities


@PARTICIPATION.register("tifl")
@dataclass
class TiFL(CountedSelection):
    """A choice of each round's clients from a single tier (Chai et al. 2020). No client then waits for a slower tier.

    A tier is a group of about equally fast clients.

    Attributes:
        tiers: Number of tiers.
        rounds: Number of rounds of a period. Each tier gets an equal part of them as credits, so that each period has
            equally many rounds of each tier.
        interval: Number of rounds between two changes of the probabilities. None means the number of tiers.
    """

    tiers: Count = 5
    rounds: Count = 100
    interval: Count | None = None

    rounds_only: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_tier_of", "_credits", "_probabilities", "_tier", "_last_losses")

    def __post_init__(self) -> None:
        # The tier of each client. The list is empty before the first round.
        self._tier_of: list[int] = []
        self._credits: list[int] = []
        self._probabilities: list[float] = []
        # The tier from which the last round chose its clients.
        self._tier = 0
        # The loss of each tier at the last call of `_update_probabilities`.
        self._last_losses: list[float] = []

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        if not self._tier_of:
            self._form_tiers(view.durations, view.count)
        if view.step and view.step % (self.interval or self.tiers) == 0:
            self._update_probabilities(view)
        tiers = np.array(self._tier_of)[view.candidates]
        # A tier with only quarantined clients cannot be drawn.
        present = np.bincount(tiers, minlength=self.tiers) > 0
        can_train = present & (np.array(self._credits) > 0)
        if not can_train.any():
            self._begin_period()
            can_train = present
        weights = np.array(self._probabilities) * can_train
        if not weights.any():
            weights = 1.0 * can_train
        self._tier = int(rng.choice(self.tiers, p=weights / weights.sum()))
        self._credits[self._tier] -= 1
        members = view.candidates[tiers == self._tier]
        drawn: list[int] = rng.choice(members, min(view.count, len(members)), replace=False).tolist()
        return drawn

    def _form_tiers(self, durations: Floats, count: int) -> None:
        """Divide the clients by their task durations [N] into tiers of at least `count` clients."""
        clients = len(durations)
        if clients < self.tiers:
            expected = f"at most {clients}, the number of clients"
            raise InputError("participation.tiers", got=self.tiers, expected=expected)
        smallest = clients // self.tiers
        if smallest < count:
            problem = f"the smallest of {self.tiers} tiers has {format_count(smallest, 'client')}"
            raise InputError("participation.count", problem, got=count, hint="give a smaller count or fewer tiers")
        tier_of = np.zeros(clients, int)
        for tier, members in enumerate(np.array_split(np.argsort(durations, kind="stable"), self.tiers)):
            tier_of[members] = tier
        self._tier_of = tier_of.tolist()
        self._begin_period()

    def _begin_period(self) -> None:
        """Give all tiers the same credits and the same probability."""
        self._credits = [ceil(self.rounds / self.tiers)] * self.tiers
        self._probabilities = [1 / self.tiers] * self.tiers

    def _update_probabilities(self, view: SelectionContext) -> None:
        """Set the probabilities of the tiers by the ranks of their losses.

        The loss of a tier is the mean of the last losses of its clients. The probabilities stay the same if the loss of
        the last round's tier is lower than at the previous call.
        """
        tier_of = np.array(self._tier_of)
        losses = np.full(self.tiers, np.inf)
        for tier in range(self.tiers):
            known = view.losses[(tier_of == tier) & (view.participations > 0)]
            if len(known):
                losses[tier] = known.mean()
        if self._last_losses and losses[self._tier] >= self._last_losses[self._tier]:
            self._probabilities = rank_probabilities(losses, np.array(self._credits)).tolist()
        self._last_losses = losses.tolist()
