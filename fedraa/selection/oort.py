"""Oort: choose clients with a high and quick use for the model (Lai et al. 2021, as in the authors' code).

Observed for client i: stat_i = n_i * loss_i, its duration t_i, and the step L_i of its last update
    T = duration at the percentile `percentile` of all known durations
    score_i = (min(stat_i, clip) - 0.999 min) / (max - 0.999 min) + sqrt(0.1 ln R / L_i)     # R, L_i from 1
    score_i *= (T / t_i)^penalty  if t_i > T
Exploit (1 - eps) * m: of the clients with a score of at least cut_off times the score after the best (1 - eps) * m,
    and at least 10 (1 - eps) * m clients, draw by score
Explore eps * m: of the clients that never trained, draw by n_i, with the same penalty
eps = max(min_exploration, exploration * decay^step)
Pacer, every `window` choices: U = sum of the mean stat of the exploited clients
    change of U <= 10 %:    percentile += pace
    change of U >= 500 %:   percentile -= pace

The paper states the sum over samples of squared losses. A client sends only its mean loss, so stat is exact if the
losses of its samples are equal, and too small otherwise.

Read next: ledger/participation.py (the interface), ledger/selection_context.py (the observations).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import Floats, Ints, SelectionContext
from fedraa.numbers import Count, NotNegative, Positive, Share, UpToOne

# The pacer's limits for a flat and for a sharp change of the utility, as shares of the utility.
FLAT_CHANGE = 0.1
SHARP_CHANGE = 5.0
# The draw by score is among at least this multiple of the exploited clients.
POOL_FACTOR = 10
UNCERTAINTY = 0.1


def exploration_at(step: int, first: float, decay: float, least: float) -> float:
    """Return the share of explored clients after this number of steps.

    Args:
        step: Number of steps.
        first: The share before the first step.
        decay: Factor on the share per step.
        least: The smallest share.
    """
    return max(least, first * decay**step)


def score_clients(
    stats: Floats, durations: Floats, last: Ints, *, step: int, preferred: float, penalty: float, clip: float = 1.0
) -> Floats:
    """Return the score of each explored client [n], as in the authors' code.

    Args:
        stats: The statistical utility of each client [n].
        durations: The duration of each client's task [n].
        last: The step of each client's last update [n], from 1.
        step: The current step R, from 1.
        preferred: The duration T above which clients are penalised.
        penalty: The power of the penalty.
        clip: The share of clients, in ascending order of utility, above which a utility is cut.
    """
    ordered = np.sort(stats)
    least = 0.999 * ordered[0]
    spread = max(ordered[-1] - least, 1e-4)
    limit = ordered[min(int(len(ordered) * clip), len(ordered) - 1)]
    scores = (np.minimum(stats, limit) - least) / spread + np.sqrt(UNCERTAINTY * np.log(step) / last)
    return np.asarray(scores * penalise(durations, preferred, penalty))


def penalise(durations: Floats, preferred: float, penalty: float) -> Floats:
    """Return the factor of each duration [n]: 1 up to the preferred one, (T / t)^penalty above it."""
    factors = np.ones(len(durations))
    slow = durations > preferred
    factors[slow] = (preferred / durations[slow]) ** penalty
    return factors


def draw_by_score(pool: Ints, scores: Floats, count: int, rng: np.random.Generator) -> list[int]:
    """Return `count` clients of the pool [n] without replacement, with probability proportional to their scores [n]."""
    if count == 0:
        return []
    positive = np.maximum(scores, 1e-12)
    drawn: list[int] = rng.choice(pool, count, replace=False, p=positive / positive.sum()).tolist()
    return drawn


@PARTICIPATION.register("oort")
@dataclass
class Oort(CountedSelection):
    """Clients with a high loss that are also fast, and some that never trained (Lai et al. 2021).

    With an asynchronous method, each choice fills one free slot, with the probability eps by a client that never
    trained.

    Attributes:
        exploration: Share of clients per round that never trained, in the first round.
        decay: Factor on this share per server step.
        min_exploration: The smallest share.
        penalty: The power of the penalty for slow clients.
        percentile: Percentile of the known durations, from which a client is slow.
        pace: Change of the percentile by the pacer.
        window: Choices between two changes of the pacer.
        cut_off: Share of the score that admits a client to the draw.
        clip: Share of clients, in ascending order, above which a utility is cut.
        max_participations: A client with more updates is not chosen again, at most 30 % of the clients. None: no limit.
    """

    exploration: UpToOne = 0.9
    decay: UpToOne = 0.98
    min_exploration: UpToOne = 0.2
    penalty: NotNegative = 2.0
    percentile: Positive = 10.0
    pace: Positive = 5.0
    window: Count = 20
    cut_off: UpToOne = 0.95
    clip: Share = 0.95
    max_participations: Count | None = None

    state_fields: ClassVar[tuple[str, ...]] = ("_threshold", "_utilities", "_exploited", "_exploited_before")

    def __post_init__(self) -> None:
        self._threshold = self.percentile
        # The mean utility of the exploited clients of each choice, for the last two windows.
        self._utilities: list[float] = []
        # The exploited clients of the last choice, and their numbers of updates at that time.
        self._exploited: list[int] = []
        self._exploited_before: list[int] = []

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        tried = view.participations > 0
        stats = np.where(tried, view.samples * np.where(tried, view.losses, 0.0), 0.0)
        self._pace(view, stats)
        candidates = self._without_frequent(view)
        preferred = self._preferred_duration(view.durations)
        explored = candidates[tried[candidates]]
        unseen = candidates[~tried[candidates]]
        count = min(view.count, len(candidates))
        share = exploration_at(view.step, self.exploration, self.decay, self.min_exploration)
        exploit = _round_at_random(count * (1 - share), rng)
        # The other group fills up if one of the groups is too small.
        exploit = min(max(exploit, count - len(unseen)), len(explored), count)
        exploited: list[int] = []
        if exploit:
            scores = score_clients(
                stats[explored],
                view.durations[explored],
                view.last_steps[explored] + 1,
                step=view.step + 1,
                preferred=preferred,
                penalty=self.penalty,
                clip=self.clip,
            )
            exploited = self._exploit(explored, scores, exploit, rng)
        weights = view.samples[unseen] * penalise(view.durations[unseen], preferred, self.penalty)
        new = draw_by_score(unseen, weights, count - len(exploited), rng)
        self._exploited = exploited
        self._exploited_before = view.participations[exploited].tolist()
        return exploited + new

    def _exploit(self, explored: Ints, scores: Floats, count: int, rng: np.random.Generator) -> list[int]:
        """Return `count` explored clients, drawn by score from those with a score near the best ones."""
        order = np.argsort(-scores, kind="stable")
        limit = scores[order[min(count, len(order) - 1)]] * self.cut_off
        near = int((scores >= limit).sum())
        pool = order[: max(near, min(POOL_FACTOR * count, len(order)))]
        return draw_by_score(explored[pool], scores[pool], count, rng)

    def _preferred_duration(self, durations: Floats) -> float:
        """Return the duration T at the current percentile, infinite at 100."""
        if self._threshold >= 100:
            return float("inf")
        known = np.sort(durations)
        return float(known[min(int(len(known) * self._threshold / 100), len(known) - 1)])

    def _without_frequent(self, view: SelectionContext) -> Ints:
        """Return the candidates without those that have trained too often."""
        if self.max_participations is None:
            return view.candidates
        trained = view.participations[view.candidates]
        frequent = view.candidates[np.argsort(-trained, kind="stable")][: (trained > self.max_participations).sum()]
        allowed = min(3 * len(view.samples) // 10, len(view.candidates) - view.count)
        return np.setdiff1d(view.candidates, frequent[: max(0, allowed)])

    def _pace(self, view: SelectionContext, stats: Floats) -> None:
        """Record the utility of the last exploited clients, and change the percentile at the end of a window."""
        pairs = zip(self._exploited, self._exploited_before, strict=True)
        answered = [client for client, before in pairs if view.participations[client] > before]
        self._utilities.append(float(stats[answered].mean()) if answered else 0.0)
        if len(self._utilities) < 2 * self.window:
            return
        last = sum(self._utilities[: self.window])
        change = abs(sum(self._utilities[self.window :]) - last)
        if change <= FLAT_CHANGE * last:
            self._threshold = min(100.0, self._threshold + self.pace)
        elif change >= SHARP_CHANGE * last:
            self._threshold = max(self.pace, self._threshold - self.pace)
        del self._utilities[: self.window]


def _round_at_random(value: float, rng: np.random.Generator) -> int:
    """Return the value rounded down, or up with the probability of its fraction."""
    whole = int(value)
    return whole + int(rng.random() < value - whole)
